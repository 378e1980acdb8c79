#include "remote/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "openssl/err.h"
#include "openssl/ssl.h"
#include "openssl/x509_vfy.h"

#include "base/status.h"
#include "os/sockets.h"
#include "remote/tls_socket.h"

namespace prefixd::remote {
namespace {

constexpr size_t kRecordBytes = 16384;  // most in one TLS record
constexpr unsigned kUnacknowledgedMs = 10'000;

absl::Status Failed(const std::string& what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

bool MayTryAgain(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// Buffers are left to the kernel, which makes them larger as it needs; a fixed SO_RCVBUF would stop
// that. SO_RCVLOWAT, to wake up less often, loads nothing faster: the server is what takes time.
void SetOptions(int socket) {
  const int at_once = 1;  // without it the connection is slower
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  os::WatchPeer(
      socket, {.idle_s = 15, .interval_s = 5, .count = 3, .unacknowledged_ms = kUnacknowledgedMs});
}

}  // namespace

Transport::Transport(const Endpoint& address, std::shared_ptr<Resolution> resolution,
                     std::shared_ptr<const TlsContext> tls)
    : address_(address), resolution_(std::move(resolution)), tls_(std::move(tls)) {}

Transport::~Transport() { SSL_free(ssl_); }

int Transport::fd() const {
  return state_ == State::kResolving ? resolution_->fd() : socket_.get();
}

short Transport::events() const {
  switch (state_) {
    case State::kResolving:
      return POLLIN;
    case State::kConnecting:
      return POLLOUT;
    case State::kHandshake:
      return tls_wants_write_ ? POLLOUT : POLLIN;
    default:
      return tls_wants_write_ ? POLLIN | POLLOUT : POLLIN;
  }
}

absl::Status Transport::Connect() {
  if (state_ == State::kResolving) PREFIXD_RETURN_IF_ERROR(TakeAddresses());
  if (state_ == State::kConnecting) PREFIXD_RETURN_IF_ERROR(FinishConnect());
  if (state_ == State::kHandshake) PREFIXD_RETURN_IF_ERROR(Handshake());
  return absl::OkStatus();
}

absl::Status Transport::TakeAddresses() {
  std::string why;
  if (!resolution_->Take(&addresses_, &why)) return absl::OkStatus();
  if (addresses_.empty()) return absl::UnavailableError(why);
  return TryNext();
}

// Begins to connect to the next of the host's addresses.
absl::Status Transport::TryNext() {
  const SocketAddress& to = addresses_[next_address_++];
  state_ = State::kConnecting;
  socket_ =
      base::Descriptor(os::NewSocket(to.bytes.ss_family, SOCK_STREAM, IPPROTO_TCP, os::Waits::kNo));
  if (!socket_) return Failed("there is no socket", errno);
  SetOptions(socket_.get());
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to.bytes), to.length) == 0 ||
      errno == EINPROGRESS || errno == EINTR) {
    return absl::OkStatus();
  }
  const int error = errno;
  return next_address_ < addresses_.size() ? TryNext() : Failed("cannot connect", error);
}

absl::Status Transport::FinishConnect() {
  pollfd ready{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) <= 0) return absl::OkStatus();
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) {
    return next_address_ < addresses_.size() ? TryNext() : Failed("cannot connect", error);
  }
  if (tls_ == nullptr) {
    state_ = State::kConnected;
    return absl::OkStatus();
  }
  ssl_ = tls_->NewClient(socket_.get(), address_.host);
  if (ssl_ == nullptr) return absl::UnavailableError("TLS: OpenSSL gives no connection");
  state_ = State::kHandshake;
  return absl::OkStatus();
}

absl::Status Transport::Handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_);
  if (done == 1) {
    state_ = State::kConnected;
    tls_wants_write_ = false;
    return absl::OkStatus();
  }
  const int error = SSL_get_error(ssl_, done);
  tls_wants_write_ = error == SSL_ERROR_WANT_WRITE;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return absl::OkStatus();
  const long verified = SSL_get_verify_result(ssl_);
  if (verified != X509_V_OK) {
    ERR_clear_error();
    return absl::UnavailableError(absl::StrCat("TLS: the server's certificate is refused: ",
                                               X509_verify_cert_error_string(verified)));
  }
  return absl::UnavailableError(absl::StrCat("TLS: ", TakeTlsError("the server hung up")));
}

absl::StatusOr<size_t> Transport::Send(std::span<const iovec> places) {
  if (ssl_ != nullptr) return SendTls(places);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(places.data());
  message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(places.size());
  const ssize_t count = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (count >= 0) return static_cast<size_t>(count);
  if (MayTryAgain(errno)) return 0;
  return Failed("the connection broke", errno);
}

// Short pieces go into one record together. A record that OpenSSL did not take is offered again.
absl::StatusOr<size_t> Transport::SendTls(std::span<const iovec> places) {
  record_.clear();
  for (const iovec& place : places) {
    const size_t room = kRecordBytes - record_.size();
    record_.append(static_cast<const char*>(place.iov_base), std::min(room, place.iov_len));
    if (record_.size() == kRecordBytes) break;
  }
  size_t sent = 0;
  ERR_clear_error();
  const int done = SSL_write_ex(ssl_, record_.data(), record_.size(), &sent);
  if (done == 1) {
    tls_wants_write_ = false;
    return sent;
  }
  const int error = SSL_get_error(ssl_, done);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    tls_wants_write_ = error == SSL_ERROR_WANT_WRITE;
    return 0;
  }
  return absl::UnavailableError(absl::StrCat("TLS: ", TakeTlsError("the connection broke")));
}

absl::StatusOr<size_t> Transport::Receive(std::span<iovec> places) {
  if (ssl_ != nullptr) return ReceiveTls(places);
  msghdr message{};
  message.msg_iov = places.data();
  message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(places.size());
  const ssize_t count = recvmsg(socket_.get(), &message, 0);
  if (count > 0) return static_cast<size_t>(count);
  if (count == 0) return absl::UnavailableError("the server closed the connection");
  if (MayTryAgain(errno)) return 0;
  return Failed("the connection broke", errno);
}

absl::StatusOr<size_t> Transport::ReceiveTls(std::span<iovec> places) {
  size_t received = 0;
  for (const iovec& place : places) {
    for (size_t at = 0; at < place.iov_len;) {
      size_t count = 0;
      ERR_clear_error();
      const int done =
          SSL_read_ex(ssl_, static_cast<char*>(place.iov_base) + at, place.iov_len - at, &count);
      if (done == 1) {
        at += count;
        received += count;
        continue;
      }
      const int error = SSL_get_error(ssl_, done);
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE || received > 0) {
        return received;  // an error comes again
      }
      return absl::UnavailableError(
          error == SSL_ERROR_ZERO_RETURN
              ? "the server closed the connection"
              : absl::StrCat("TLS: ", TakeTlsError("the server hung up")));
    }
  }
  return received;
}

}  // namespace prefixd::remote
