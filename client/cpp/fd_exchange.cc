#include "fd_exchange.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "address.h"
#include "base/status.h"
#include "fork_guard.h"

namespace prefixd::client {
namespace {

constexpr size_t kMostFiles = 8;  // received and closed if the peer sends more than three

absl::Status Failed(const char* what, const std::string& socket) {
  return absl::UnavailableError(absl::StrCat(what, " ", socket, ": ", std::strerror(errno)));
}

std::vector<base::Descriptor> TakeFiles(msghdr* message) {
  std::vector<base::Descriptor> files;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + at, sizeof(fd));
      files.emplace_back(fd);
    }
  }
  return files;
}

// Waits until `fd` is readable. Returns false, with errno, if nothing comes until `end`.
bool Await(int fd, std::chrono::steady_clock::time_point end) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&polled, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) errno = EAGAIN;
    return false;
  }
}

// Sends the key. Returns the connection once the answer has come.
absl::StatusOr<base::Descriptor> Ask(const std::string& socket, const std::string& key,
                                     std::chrono::milliseconds patience) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(name.sun_path)) {
    return absl::FailedPreconditionError(absl::StrCat("the path of ", socket, " has ",
                                                      socket.size(), " bytes, at most ",
                                                      sizeof(name.sun_path) - 1));
  }
  std::memcpy(name.sun_path, socket.data(), socket.size());
  base::Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return Failed("socket for", socket);
  const auto end = std::chrono::steady_clock::now() + patience;
  const timeval wait{.tv_sec = patience.count() / 1000, .tv_usec = patience.count() % 1000 * 1000};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return Failed("connect to", socket);
  }
  if (send(fd.get(), key.data(), key.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(key.size())) {
    return Failed("send to", socket);
  }
  return Await(fd.get(), end) ? absl::StatusOr<base::Descriptor>(std::move(fd))
                              : Failed("receive from", socket);
}

// Reads the answer, which has come, without waiting.
absl::StatusOr<SessionFiles> Take(const base::Descriptor& fd, const std::string& socket,
                                  const std::string& key) {
  std::array<char, 1024> answer{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFiles * sizeof(int))> control{};
  iovec data{.iov_base = answer.data(), .iov_len = answer.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = recvmsg(fd.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (bytes < 0) return Failed("receive from", socket);
  std::vector<base::Descriptor> files = TakeFiles(&message);
  const std::string text(answer.data(), static_cast<size_t>(bytes));
  if (files.empty() && text != key) {  // the text says why
    return absl::FailedPreconditionError(absl::StrCat(socket, ": ", text));
  }
  if (text != key || files.size() < 2 || files.size() > 3 ||
      (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("receive from ", socket, ": ", bytes,
                                                      " bytes and ", files.size(),
                                                      " descriptors, not the session's"));
  }
  SessionFiles taken;
  taken.arena = std::move(files[0]);
  taken.lock = std::move(files[1]);
  if (files.size() == 3) taken.staging = std::move(files[2]);
  return taken;
}

}  // namespace

std::optional<std::string> PathBeside(const std::string& address, const std::string& file_name) {
  std::string path = UnixPath(address);
  if (path.empty()) return std::nullopt;
  if (file_name.empty() || file_name.find('/') != std::string::npos) return std::nullopt;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? file_name : path.substr(0, slash + 1) + file_name;
}

absl::Status ReceiveFiles(const std::string& socket, const std::string& key,
                          std::chrono::milliseconds patience,
                          const std::function<absl::Status(SessionFiles)>& use) {
  PREFIXD_ASSIGN_OR_RETURN(const base::Descriptor peer, Ask(socket, key, patience));
  const ForkGuard guard;
  PREFIXD_ASSIGN_OR_RETURN(SessionFiles files, Take(peer, socket, key));
  return use(std::move(files));
}

}  // namespace prefixd::client
