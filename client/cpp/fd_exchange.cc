#include "fd_exchange.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "wire/socket_buffers.h"

namespace prefixd::client {
namespace {

constexpr size_t kMostFiles = 8;  // taken over and closed, if the peer sends more than two

absl::Status Failed(const char* what, const std::string& socket) {
  return absl::UnavailableError(absl::StrCat(what, " ", socket, ": ", std::strerror(errno)));
}

std::vector<UniqueFd> TakeFiles(msghdr* message) {
  std::vector<UniqueFd> files;
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

}  // namespace

std::optional<std::string> PathBeside(const std::string& address, const std::string& file_name) {
  std::string path(wire::UnixPath(address));
  if (path.empty()) return std::nullopt;
  if (file_name.empty() || file_name.find('/') != std::string::npos) return std::nullopt;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? file_name : path.substr(0, slash + 1) + file_name;
}

absl::StatusOr<SessionFiles> ReceiveFiles(const std::string& socket, const std::string& key,
                                          std::chrono::milliseconds patience) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(name.sun_path)) {
    return absl::FailedPreconditionError(absl::StrCat("the path of ", socket, " has ",
                                                      socket.size(), " bytes, at most ",
                                                      sizeof(name.sun_path) - 1));
  }
  std::memcpy(name.sun_path, socket.data(), socket.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return Failed("socket for", socket);
  const timeval wait{.tv_sec = patience.count() / 1000, .tv_usec = patience.count() % 1000 * 1000};
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return Failed("connect to", socket);
  }
  if (send(fd.get(), key.data(), key.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(key.size())) {
    return Failed("send to", socket);
  }
  std::array<char, 1024> answer{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFiles * sizeof(int))> control{};
  iovec data{.iov_base = answer.data(), .iov_len = answer.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = recvmsg(fd.get(), &message, MSG_CMSG_CLOEXEC);
  if (bytes < 0) return Failed("receive from", socket);
  std::vector<UniqueFd> files = TakeFiles(&message);
  const std::string text(answer.data(), static_cast<size_t>(bytes));
  if (files.empty() && text != key) {  // it says why
    return absl::FailedPreconditionError(absl::StrCat(socket, ": ", text));
  }
  if (text != key || files.empty() || files.size() > 2 ||
      (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("receive from ", socket, ": ", bytes,
                                                      " bytes and ", files.size(),
                                                      " descriptors, not the session's"));
  }
  SessionFiles taken;
  taken.arena = std::move(files[0]);
  if (files.size() == 2) taken.staging = std::move(files[1]);
  return taken;
}

}  // namespace prefixd::client
