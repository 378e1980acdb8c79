#include "daemon/tracing/http_post.h"

#include <poll.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

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

// Waits until the socket is ready for `events`. Unavailable names `what` if it is not in time.
absl::Status WaitFor(const remote::Transport& transport, short events, const char* what,
                     base::Deadline deadline, const StopSignal& stop) {
  for (;;) {
    const bool stopping = stop.set();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        stop.Cap(deadline) - std::chrono::steady_clock::now());
    if (left.count() <= 0) return absl::UnavailableError(absl::StrCat(what, ": not in time"));
    std::array<pollfd, 2> polled{
        {{transport.fd(), events, 0}, {stopping ? -1 : stop.fd(), POLLIN, 0}}};
    const int ready = ::poll(polled.data(), polled.size(),
                             static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
    if (ready < 0 && errno != EINTR)
      return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
    if (ready > 0 && polled[0].revents != 0) return absl::OkStatus();
  }
}

absl::Status Connect(remote::Transport& transport, base::Deadline deadline,
                     const StopSignal& stop) {
  for (;;) {
    PREFIXD_RETURN_IF_ERROR(transport.Connect());
    if (transport.connected()) return absl::OkStatus();
    PREFIXD_RETURN_IF_ERROR(WaitFor(transport, transport.events(), "connect", deadline, stop));
  }
}

// Does not look at what the server sends meanwhile: one that answers and reads no more would keep
// this thread busy until the deadline.
absl::Status SendAll(remote::Transport& transport, std::string_view text, base::Deadline deadline,
                     const StopSignal& stop) {
  while (!text.empty()) {
    const iovec place{const_cast<char*>(text.data()), text.size()};
    PREFIXD_ASSIGN_OR_RETURN(const size_t sent, transport.Send({&place, 1}));
    text.remove_prefix(sent);
    if (sent == 0) PREFIXD_RETURN_IF_ERROR(WaitFor(transport, POLLOUT, "send", deadline, stop));
  }
  return absl::OkStatus();
}

// Appends what comes.
absl::Status ReceiveSome(remote::Transport& transport, std::string* to, base::Deadline deadline,
                         const StopSignal& stop) {
  std::array<char, 4096> bytes;
  for (;;) {
    iovec place{bytes.data(), bytes.size()};
    PREFIXD_ASSIGN_OR_RETURN(const size_t came, transport.Receive({&place, 1}));
    to->append(bytes.data(), came);
    if (came > 0) return absl::OkStatus();
    PREFIXD_RETURN_IF_ERROR(WaitFor(transport, POLLIN, "wait for an answer", deadline, stop));
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

absl::StatusOr<HttpReply> Receive(remote::Transport& transport, base::Deadline deadline,
                                  const StopSignal& stop) {
  std::string came;
  size_t end = std::string::npos;
  while ((end = came.find("\r\n\r\n")) == std::string::npos) {
    if (came.size() > kMostHeadBytes)
      return absl::UnavailableError("the headers of the answer do not end");
    PREFIXD_RETURN_IF_ERROR(ReceiveSome(transport, &came, deadline, stop));
  }
  const std::string head = came.substr(0, end + 2);
  PREFIXD_ASSIGN_OR_RETURN(HttpReply reply, ReadHead(head));
  uint64_t length = 0;
  if (!absl::SimpleAtoi(HeaderOf(head, "Content-Length"), &length) || length > kMostBodyBytes)
    return reply;
  came.erase(0, end + 4);
  while (came.size() < length) {
    if (!ReceiveSome(transport, &came, deadline, stop).ok()) return reply;
  }
  reply.body = came.substr(0, length);
  return reply;
}

}  // namespace

absl::StatusOr<HttpReply> PostProtobuf(const HttpServer& server, std::string_view body,
                                       base::Deadline deadline, const StopSignal& stop) {
  const CollectorAddress& address = server.address;
  const remote::Endpoint endpoint{address.host, address.port};
  remote::Transport transport(endpoint, Names().Ask(address.host, address.port), server.tls);
  PREFIXD_RETURN_IF_ERROR(Connect(transport, deadline, stop));
  const std::string head = absl::StrCat(
      "POST ", address.path, " HTTP/1.1\r\nHost: ", HostAndPort(address),
      "\r\nUser-Agent: prefixd\r\nContent-Type: application/x-protobuf\r\nContent-Length: ",
      body.size(), "\r\nConnection: close\r\n", server.headers, "\r\n");
  PREFIXD_RETURN_IF_ERROR(SendAll(transport, head, deadline, stop));
  PREFIXD_RETURN_IF_ERROR(SendAll(transport, body, deadline, stop));
  return Receive(transport, deadline, stop);
}

}  // namespace prefixd::daemon
