#include "remote/connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::remote {
namespace {

constexpr size_t kRunsAtOnce = 64;
constexpr int kSocketBytes = 4 << 20;  // of the kernel's buffers: as much as is on its way

SSL* Of(void* ssl) { return static_cast<SSL*>(ssl); }

std::string TlsError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "the server ended it";
  const char* const reason = ERR_reason_error_string(error);
  return reason == nullptr ? absl::StrCat("error ", error) : reason;
}

absl::Status Unusable(const char* what, const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat(what, " ", path, ": ", TlsError()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<TlsContext>> TlsContext::Open(const RedisOptions& options) {
  std::shared_ptr<TlsContext> tls(new TlsContext);
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  tls->context_ = context;
  if (context == nullptr) return absl::UnavailableError("tls: " + TlsError());
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (options.ca_file.empty()) {
    SSL_CTX_set_default_verify_paths(context);
  } else if (SSL_CTX_load_verify_locations(context, options.ca_file.c_str(), nullptr) != 1) {
    return Unusable("the certificates of", options.ca_file);
  }
  if (options.cert_file.empty()) return tls;
  if (SSL_CTX_use_certificate_chain_file(context, options.cert_file.c_str()) != 1) {
    return Unusable("the certificate of", options.cert_file);
  }
  if (SSL_CTX_use_PrivateKey_file(context, options.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Unusable("the key of", options.key_file);
  }
  return tls;
}

TlsContext::~TlsContext() { SSL_CTX_free(static_cast<SSL_CTX*>(context_)); }

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const Endpoint& endpoint,
                                                             const RedisOptions& options,
                                                             const std::shared_ptr<TlsContext>& tls,
                                                             base::Deadline deadline) {
  std::unique_ptr<Connection> connection(new Connection(endpoint));
  connection->tls_ = tls;
  connection->deadline_ = deadline;
  PREFIXD_RETURN_IF_ERROR(connection->Connect());
  if (tls != nullptr) PREFIXD_RETURN_IF_ERROR(connection->AgreeOnTls(options));
  PREFIXD_RETURN_IF_ERROR(connection->LogIn(options));
  return connection;
}

Connection::~Connection() {
  SSL_free(Of(ssl_));
  if (socket_ >= 0) close(socket_);
}

absl::Status Connection::Failed(const char* what, int error) const {
  return absl::UnavailableError(absl::StrCat(TextOf(endpoint_), " ", what, error == 0 ? "" : ": ",
                                             error == 0 ? "" : std::strerror(error)));
}

absl::Status Connection::Await(short events) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      return absl::DeadlineExceededError(absl::StrCat(TextOf(endpoint_), " timed out"));
    }
    pollfd one{.fd = socket_, .events = events, .revents = 0};
    const int ready = poll(&one, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Failed("cannot be waited for", errno);
  }
}

absl::Status Connection::Connect() {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint_.host.c_str(), std::to_string(endpoint_.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat(TextOf(endpoint_), " has no address: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  absl::Status last = Failed("has no address", 0);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (socket_ >= 0) close(socket_);
    socket_ = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0) return Failed("got no socket", errno);
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof(kSocketBytes));
    if (connect(socket_, address->ai_addr, address->ai_addrlen) == 0) return absl::OkStatus();
    last = Failed("refuses connections", errno);
    if (errno != EINPROGRESS) continue;
    PREFIXD_RETURN_IF_ERROR(Await(POLLOUT));
    int what = 0;
    socklen_t size = sizeof(what);
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &what, &size);
    if (what == 0) return absl::OkStatus();
    last = Failed("refuses connections", what);
  }
  return last;
}

absl::Status Connection::AgreeOnTls(const RedisOptions&) {
  ssl_ = SSL_new(static_cast<SSL_CTX*>(tls_->ssl_context()));
  if (ssl_ == nullptr) return absl::UnavailableError("tls: " + TlsError());
  SSL* const ssl = Of(ssl_);
  SSL_set_fd(ssl, socket_);
  // The certificate has to name the host as it is asked for.
  X509_VERIFY_PARAM* const expected = SSL_get0_param(ssl);
  if (X509_VERIFY_PARAM_set1_ip_asc(expected, endpoint_.host.c_str()) != 1) {
    SSL_set1_host(ssl, endpoint_.host.c_str());
    SSL_set_tlsext_host_name(ssl, endpoint_.host.c_str());
  }
  for (;;) {
    const int done = SSL_connect(ssl);
    if (done == 1) return absl::OkStatus();
    const int why = SSL_get_error(ssl, done);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) {
      PREFIXD_RETURN_IF_ERROR(Await(why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT));
      continue;
    }
    const long verified = SSL_get_verify_result(ssl);
    return absl::UnavailableError(
        absl::StrCat(TextOf(endpoint_), " did not agree on TLS: ",
                     verified == X509_V_OK ? TlsError() : X509_verify_cert_error_string(verified)));
  }
}

absl::Status Connection::LogIn(const RedisOptions& options) {
  if (!options.password.empty()) {
    Command login(options.user.empty() ? 2 : 3);
    login.Add("AUTH");
    if (!options.user.empty()) login.Add(options.user);
    PREFIXD_ASSIGN_OR_RETURN(const Reply reply, Ask(login.Add(options.password)));
    if (reply.is(Reply::Kind::kError)) {
      return absl::PermissionDeniedError(
          absl::StrCat(TextOf(endpoint_), " does not take the user and password: ", reply.text));
    }
  }
  PREFIXD_ASSIGN_OR_RETURN(const Reply named,
                           Ask(Command(3).Add("CLIENT").Add("SETNAME").Add("prefixd")));
  if (!named.is(Reply::Kind::kError) || absl::StartsWith(named.text, "NOPERM")) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(TextOf(endpoint_), " does not serve this user: ", named.text));
}

absl::Status Connection::WriteTls(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const int written = SSL_write(Of(ssl_), bytes.data(),
                                  static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20)));
    if (written > 0) {
      bytes = bytes.subspan(static_cast<size_t>(written));
      continue;
    }
    const int why = SSL_get_error(Of(ssl_), written);
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
      return Failed(("ended TLS: " + TlsError()).c_str(), 0);
    }
    PREFIXD_RETURN_IF_ERROR(Await(why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT));
  }
  return absl::OkStatus();
}

absl::Status Connection::WriteAll(const ConstRuns& runs) {
  std::vector<iovec> left;
  for (const std::span<const std::byte>& run : runs) {
    if (!run.empty()) left.push_back({const_cast<std::byte*>(run.data()), run.size()});
  }
  for (size_t first = 0; first < left.size();) {
    msghdr message{};
    message.msg_iov = &left[first];
    message.msg_iovlen = std::min(left.size() - first, kRunsAtOnce);
    ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Failed("ended the connection", errno);
      PREFIXD_RETURN_IF_ERROR(Await(POLLOUT));
      continue;
    }
    for (; first < left.size() && static_cast<size_t>(sent) >= left[first].iov_len; ++first) {
      sent -= static_cast<ssize_t>(left[first].iov_len);
    }
    if (first == left.size()) break;
    left[first].iov_base = static_cast<std::byte*>(left[first].iov_base) + sent;
    left[first].iov_len -= static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

absl::Status Connection::Send(std::span<const Command* const> commands) {
  ConstRuns all;
  for (const Command* const command : commands) {
    all.insert(all.end(), command->runs().begin(), command->runs().end());
  }
  if (ssl_ == nullptr) return WriteAll(all);
  for (const std::span<const std::byte>& run : all) PREFIXD_RETURN_IF_ERROR(WriteTls(run));
  return absl::OkStatus();
}

absl::StatusOr<Reply> Connection::Ask(const Command& command) {
  const Command* const one = &command;
  PREFIXD_RETURN_IF_ERROR(Send({&one, 1}));
  return reader_.Read();
}

bool Connection::stale() const {
  pollfd one{.fd = socket_, .events = POLLIN, .revents = 0};
  return poll(&one, 1, 0) != 0;
}

absl::StatusOr<size_t> Connection::ReadSome(std::span<std::byte> to) {
  for (;;) {
    short events = POLLIN;
    if (ssl_ == nullptr) {
      const ssize_t got = recv(socket_, to.data(), to.size(), 0);
      if (got > 0) return static_cast<size_t>(got);
      if (got == 0) return Failed("ended the connection", 0);
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Failed("ended the connection", errno);
    } else {
      const int got =
          SSL_read(Of(ssl_), to.data(), static_cast<int>(std::min<size_t>(to.size(), 1 << 30)));
      if (got > 0) return static_cast<size_t>(got);
      const int why = SSL_get_error(Of(ssl_), got);
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        return Failed(("ended TLS: " + TlsError()).c_str(), 0);
      }
      if (why == SSL_ERROR_WANT_WRITE) events = POLLOUT;
    }
    PREFIXD_RETURN_IF_ERROR(Await(events));
  }
}

}  // namespace prefixd::remote
