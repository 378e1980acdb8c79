#include "daemon/tracing/http_post.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

#include "base/descriptor.h"
#include "base/status.h"
#include "remote/resolver.h"

namespace prefixd::daemon {
namespace {

constexpr size_t kMostHeadBytes = 16 << 10;
constexpr size_t kMostBodyBytes = 64 << 10;

// Never destroyed: the system's resolver may take half a minute, and nobody waits for it at the
// end.
remote::Resolver& Names() {
  static auto* const names = new remote::Resolver;
  return *names;
}

absl::Status Failed(const char* what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// Waits until `fd` is ready. DeadlineExceeded names `what` if it is not in time.
absl::Status WaitFor(int fd, short events, const char* what, base::Deadline deadline,
                     const StopSignal& stop) {
  for (;;) {
    const bool stopping = stop.set();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        stop.Cap(deadline) - std::chrono::steady_clock::now());
    if (left.count() <= 0) return absl::UnavailableError(absl::StrCat(what, ": not in time"));
    std::array<pollfd, 2> polled{{{fd, events, 0}, {stopping ? -1 : stop.fd(), POLLIN, 0}}};
    const int ready = ::poll(polled.data(), polled.size(),
                             static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    if (ready < 0 && errno != EINTR) return Failed(what);
    if (ready > 0 && polled[0].revents != 0) return absl::OkStatus();
  }
}

absl::StatusOr<base::Descriptor> ConnectTo(const remote::SocketAddress& to, base::Deadline deadline,
                                           const StopSignal& stop) {
  base::Descriptor fd(::socket(to.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Failed("socket");
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.bytes), to.length) == 0) return fd;
  if (errno != EINPROGRESS) return Failed("connect");
  PREFIXD_RETURN_IF_ERROR(WaitFor(fd.get(), POLLOUT, "connect", deadline, stop));
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0) return fd;
  errno = error;
  return Failed("connect");
}

absl::StatusOr<base::Descriptor> Connect(const CollectorAddress& address, base::Deadline deadline,
                                         const StopSignal& stop) {
  const std::shared_ptr<remote::Resolution> asked = Names().Ask(address.host, address.port);
  PREFIXD_RETURN_IF_ERROR(WaitFor(asked->fd(), POLLIN, "look up the name", deadline, stop));
  std::vector<remote::SocketAddress> found;
  std::string why;
  asked->Take(&found, &why);
  absl::Status last = absl::UnavailableError(why);
  for (const remote::SocketAddress& to : found) {
    absl::StatusOr<base::Descriptor> fd = ConnectTo(to, deadline, stop);
    if (fd.ok()) return fd;
    last = fd.status();
  }
  return last;
}

absl::Status SendAll(int fd, std::string_view text, base::Deadline deadline,
                     const StopSignal& stop) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      text.remove_prefix(static_cast<size_t>(sent));
    } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      return Failed("send");
    } else {
      PREFIXD_RETURN_IF_ERROR(WaitFor(fd, POLLOUT, "send", deadline, stop));
    }
  }
  return absl::OkStatus();
}

// Appends what comes. Returns false at the end of the stream.
absl::StatusOr<bool> ReceiveSome(int fd, std::string* to, base::Deadline deadline,
                                 const StopSignal& stop) {
  std::array<char, 4096> bytes;
  for (;;) {
    PREFIXD_RETURN_IF_ERROR(WaitFor(fd, POLLIN, "wait for an answer", deadline, stop));
    const ssize_t came = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (came < 0) return Failed("receive");
    to->append(bytes.data(), static_cast<size_t>(came));
    return came > 0;
  }
}

// Returns the value of a header, or "". `head` ends with the empty line.
std::string HeaderOf(const std::string& head, const std::string& name) {
  for (size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at + 2)) {
    const size_t colon = at + 2 + name.size();
    if (colon >= head.size() || head[colon] != ':') continue;
    if (!absl::EqualsIgnoreCase(head.substr(at + 2, name.size()), name)) continue;
    const std::string value = head.substr(colon + 1, head.find("\r\n", colon) - colon - 1);
    return std::string(absl::StripAsciiWhitespace(value));
  }
  return "";
}

// Reads "HTTP/1.1 200 OK".
absl::StatusOr<HttpReply> ReadHead(const std::string& head) {
  HttpReply reply;
  const bool is_http = head.starts_with("HTTP/1.") && head.size() > 12 && head[8] == ' ';
  if (!is_http || !absl::SimpleAtoi(head.substr(9, 3), &reply.status) || reply.status < 100) {
    return absl::UnavailableError("the answer is not HTTP");
  }
  int seconds = 0;
  if (absl::SimpleAtoi(HeaderOf(head, "Retry-After"), &seconds) && seconds >= 0)
    reply.retry_after_s = seconds;
  return reply;
}

absl::StatusOr<HttpReply> Receive(int fd, base::Deadline deadline, const StopSignal& stop) {
  std::string came;
  size_t end = std::string::npos;
  while ((end = came.find("\r\n\r\n")) == std::string::npos) {
    if (came.size() > kMostHeadBytes)
      return absl::UnavailableError("the headers of the answer do not end");
    PREFIXD_ASSIGN_OR_RETURN(const bool more, ReceiveSome(fd, &came, deadline, stop));
    if (!more) return absl::UnavailableError("the answer ended before its headers did");
  }
  const std::string head = came.substr(0, end + 2);
  PREFIXD_ASSIGN_OR_RETURN(HttpReply reply, ReadHead(head));
  uint64_t length = 0;
  if (!absl::SimpleAtoi(HeaderOf(head, "Content-Length"), &length) || length > kMostBodyBytes)
    return reply;
  came.erase(0, end + 4);
  while (came.size() < length) {
    PREFIXD_ASSIGN_OR_RETURN(const bool more, ReceiveSome(fd, &came, deadline, stop));
    if (!more) return reply;
  }
  reply.body = came.substr(0, length);
  return reply;
}

}  // namespace

absl::StatusOr<HttpReply> PostProtobuf(const CollectorAddress& address, std::string_view body,
                                       base::Deadline deadline, const StopSignal& stop) {
  PREFIXD_ASSIGN_OR_RETURN(const base::Descriptor fd, Connect(address, deadline, stop));
  const std::string head = absl::StrCat(
      "POST ", address.path, " HTTP/1.1\r\nHost: ", HostAndPort(address),
      "\r\nUser-Agent: prefixd\r\nContent-Type: application/x-protobuf\r\nContent-Length: ",
      body.size(), "\r\nConnection: close\r\n\r\n");
  PREFIXD_RETURN_IF_ERROR(SendAll(fd.get(), head, deadline, stop));
  PREFIXD_RETURN_IF_ERROR(SendAll(fd.get(), body, deadline, stop));
  return Receive(fd.get(), deadline, stop);
}

}  // namespace prefixd::daemon
