#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/status.h"

namespace prefixd::base {
namespace {

constexpr std::chrono::milliseconds kLookEvery(5);
// A process that was just killed seems to live until the kernel marks it, an instant later.
constexpr int kLivingLooks = 3;

ProcessName HolderIn(int fd, uint64_t name_at) {
  char line[kProcessLineBytes] = {};
  const ssize_t bytes = pread(fd, line, sizeof(line), static_cast<off_t>(name_at));
  return bytes == static_cast<ssize_t>(sizeof(line)) ? DecodeProcess({line, sizeof(line)})
                                                     : ProcessName{};
}

// Returns text like "process 12, which has ended".
std::string Describe(uint64_t pid, Life life) {
  if (pid == 0) return "a process that is not named";
  const std::string process = absl::StrCat("process ", pid);
  switch (life) {
    case Life::kLives:
      return process + ", which lives";
    case Life::kEnding:
    case Life::kGone:
      return process + ", which has ended";
    case Life::kUnknown:
      break;
  }
  return process + ", of which nothing can be told from here";
}

// Returns the pid of the process that holds a record lock on the file, 0 if the kernel does not
// tell it, nullopt if no process holds one.
std::optional<uint64_t> RecordLockHolder(int fd) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return std::nullopt;
  return lock.l_pid > 0 ? static_cast<uint64_t>(lock.l_pid) : 0;
}

}  // namespace

Patience::Patience(std::string what, const LockWait& wait)
    : what_(std::move(what)),
      wait_(wait),
      deadline_(std::chrono::steady_clock::now() + wait.limit) {}

absl::Status Patience::Wait(uint64_t pid, Life life) {
  const std::string held = absl::StrCat(what_, " ", Describe(pid, life));
  living_ = life == Life::kLives ? living_ + 1 : 0;
  if (living_ == kLivingLooks) return absl::FailedPreconditionError(held);
  const int64_t limit_ms = wait_.limit.count();
  if (std::chrono::steady_clock::now() >= deadline_) {
    return absl::UnavailableError(absl::StrCat(held, "; waited ", limit_ms, " ms"));
  }
  if (living_ == 0 && !std::exchange(said_, true) && wait_.say) {
    wait_.say(absl::StrCat(held, ": waiting up to ", limit_ms, " ms for the kernel to clean up"));
  }
  std::this_thread::sleep_for(kLookEvery);
  return absl::OkStatus();
}

absl::Status LockFile(int fd, const std::string& what, uint64_t name_at, const LockWait& wait) {
  Patience patience(what + " is locked by", wait);
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      return absl::InternalError(absl::StrCat(what, ": cannot be locked: ", strerror(errno)));
    }
    const ProcessName holder = HolderIn(fd, name_at);
    PREFIXD_RETURN_IF_ERROR(patience.Wait(holder.pid, LifeOf(holder)));
  }
  return absl::OkStatus();
}

absl::Status AwaitRecordLock(const std::string& path, const std::string& what,
                             const LockWait& wait) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return absl::OkStatus();
  Patience patience(what + " is locked by", wait);
  absl::Status status;
  for (auto pid = RecordLockHolder(fd); pid && status.ok(); pid = RecordLockHolder(fd)) {
    status = patience.Wait(*pid, LifeOf(*pid));
  }
  close(fd);
  return status;
}

void NameHolder(int fd, uint64_t name_at) {
  const std::string name = Encode(ThisProcess());
  (void)!pwrite(fd, name.data(), name.size(), static_cast<off_t>(name_at));
}

void ForgetHolder(int fd, uint64_t name_at) {
  const std::string nobody(kProcessLineBytes, ' ');
  (void)!pwrite(fd, nobody.data(), nobody.size(), static_cast<off_t>(name_at));
}

bool HolderHasEnded(int fd, uint64_t name_at) {
  const Life life = LifeOf(HolderIn(fd, name_at));
  return life == Life::kEnding || life == Life::kGone;
}

bool IsUnlocked(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT;
  const bool unlocked = flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return unlocked;
}

}  // namespace prefixd::base
