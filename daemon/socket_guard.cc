#include "daemon/socket_guard.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

#include "base/own_file.h"
#include "base/status.h"
#include "os/sockets.h"

namespace prefixd::daemon {
namespace {

absl::Status Failed(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("socket: ", path, ": ", what));
}

struct Listener {
  bool answers = false;
  uint64_t pid = 0;  // 0 = unknown
  base::Life life = base::Life::kUnknown;
};

// Finds out who listens at `path`. `before`: what the last call returned.
Listener WhoListens(const std::string& path, const Listener& before) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = os::NewSocket(AF_UNIX, SOCK_STREAM, 0, os::Waits::kNo);
  const int rc = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = rc == 0 ? 0 : errno;
  Listener listener;
  // EAGAIN: a listener whose queue is full. EPROTOTYPE: a living socket of another type.
  listener.answers = rc == 0 || error == EAGAIN || error == EPROTOTYPE;
  if (error == EPROTOTYPE) listener.life = base::Life::kLives;
  if (error == EAGAIN) {  // does not tell who listens
    listener.pid = before.pid;
    listener.life = base::LifeOf(before.pid);
  }
  const std::optional<os::SocketPeer> peer = rc == 0 ? os::PeerOf(fd) : std::nullopt;
  if (peer.has_value()) {
    listener.pid = static_cast<uint64_t>(peer->pid);
    listener.life = base::LifeOf(listener.pid);
  }
  ::close(fd);
  return listener;
}

// Waits until nobody answers at `path`: the socket of a process that was killed answers until the
// kernel has closed it.
absl::Status AwaitSilence(const std::string& path, const base::LockWait& wait) {
  base::Patience patience(absl::StrCat("socket: ", path, ": another process listens there:"), wait);
  Listener listener;
  while ((listener = WhoListens(path, listener)).answers) {
    PREFIXD_RETURN_IF_ERROR(patience.Wait(listener.pid, listener.life));
  }
  return absl::OkStatus();
}

absl::Status RemoveDeadSocket(const std::string& path, const base::LockWait& wait) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) return Failed(path, "a file that is not a socket stands there");
  PREFIXD_RETURN_IF_ERROR(AwaitSilence(path, wait));
  if (::unlink(path.c_str()) != 0)
    return Failed(path, absl::StrCat("cannot remove the dead socket: ", std::strerror(errno)));
  return absl::OkStatus();
}

// The holder's name is written into the file, so it must be plain, this user's, and of one name.
absl::Status CheckLockFile(int fd, const std::string& what) {
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink > 1) {
    return absl::FailedPreconditionError(what + " is not a plain file with one name: remove it");
  }
  return base::CheckOwner(fd, what);
}

// Locks the file. Claim makes a guard only once it is locked, because a guard that ends takes the
// holder's name out of the file.
absl::Status LockIt(int fd, const std::string& path, const std::string& lock,
                    const base::LockWait& wait) {
  PREFIXD_RETURN_IF_ERROR(CheckLockFile(fd, "socket: " + lock));
  const absl::Status locked = base::LockFile(fd, "socket: " + lock, 0, wait);
  if (!absl::IsFailedPrecondition(locked)) return locked;
  return Failed(path,
                absl::StrCat("another prefixd listens there: ", std::string(locked.message())));
}

// Locks PATH.lock. Returns its descriptor, which the caller owns.
absl::StatusOr<int> LockBeside(const std::string& path, const base::LockWait& wait) {
  const std::string lock = path + ".lock";
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return Failed(path, absl::StrCat("cannot write ", lock, ": ", std::strerror(errno)));
  const absl::Status locked = LockIt(fd, path, lock, wait);
  if (locked.ok()) return fd;
  ::close(fd);
  return locked;
}

}  // namespace

absl::Status SocketGuard::CheckLength(const std::string& path) {
  constexpr size_t kMost = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("socket: path has ", path.size(), " bytes, at most ", kMost, ": ", path));
}

base::LockWait SocketGuard::LoggedWait() {
  return {.say = [](const std::string& line) { spdlog::warn("{}", line); }};
}

absl::StatusOr<SocketGuard> SocketGuard::Claim(const std::string& path,
                                               const base::LockWait& wait) {
  PREFIXD_RETURN_IF_ERROR(CheckLength(path));
  PREFIXD_RETURN_IF_ERROR(base::CheckWay(path, "socket: " + path));
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder, error)) {
    return Failed(path, absl::StrCat("the folder ", folder.string(),
                                     " is not there: make it, or name another path"));
  }
  PREFIXD_ASSIGN_OR_RETURN(const int fd, LockBeside(path, wait));
  SocketGuard guard(fd);
  base::NameHolder(guard.fd_, 0);
  PREFIXD_RETURN_IF_ERROR(RemoveDeadSocket(path, wait));
  return guard;
}

SocketGuard::~SocketGuard() {
  if (fd_ < 0) return;
  base::ForgetHolder(fd_, 0);
  ::close(fd_);
}

SocketGuard::SocketGuard(SocketGuard&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

SocketGuard& SocketGuard::operator=(SocketGuard&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

}  // namespace prefixd::daemon
