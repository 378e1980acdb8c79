#include "daemon/socket_guard.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"

namespace prefixd::daemon {
namespace {

absl::Status Failed(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("socket: ", path, ": ", what));
}

bool SomebodyAnswers(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int rc = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  // EAGAIN: listening, its queue is full. EPROTOTYPE: a living socket of another type.
  const bool answers = rc == 0 || errno == EAGAIN || errno == EPROTOTYPE;
  ::close(fd);
  return answers;
}

absl::Status RemoveDeadSocket(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) return Failed(path, "a file that is no socket stands there");
  if (SomebodyAnswers(path)) return Failed(path, "another process listens there");
  if (::unlink(path.c_str()) != 0)
    return Failed(path, absl::StrCat("cannot remove the dead socket: ", std::strerror(errno)));
  return absl::OkStatus();
}

}  // namespace

absl::Status SocketGuard::CheckLength(const std::string& path) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("socket: path has ", path.size(), " bytes, at most ", kMost, ": ", path));
}

absl::StatusOr<SocketGuard> SocketGuard::Claim(const std::string& path) {
  PREFIXD_RETURN_IF_ERROR(CheckLength(path));
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::filesystem::create_directories(folder, error);
  if (error) return Failed(path, absl::StrCat("cannot make its folder: ", error.message()));
  const std::string lock = path + ".lock";
  SocketGuard guard(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (guard.fd_ < 0)
    return Failed(path, absl::StrCat("cannot write ", lock, ": ", std::strerror(errno)));
  if (::flock(guard.fd_, LOCK_EX | LOCK_NB) != 0)
    return Failed(path, "another prefixd listens there");
  PREFIXD_RETURN_IF_ERROR(RemoveDeadSocket(path));
  return guard;
}

SocketGuard::~SocketGuard() {
  if (fd_ >= 0) ::close(fd_);
}

SocketGuard::SocketGuard(SocketGuard&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

SocketGuard& SocketGuard::operator=(SocketGuard&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace prefixd::daemon
