// Taking a file's lock (flock) from a process that may be on its way out.
//
// The kernel gives a killed process's locks back only when it has closed its files, on a host of
// many cores a moment after the process was reaped: a lock that is taken is no proof of a living
// owner. So the holder's name stands in the file, and who comes next asks whether it lives.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

#include "base/process.h"

namespace prefixd::base {

struct LockWait {
  // How long a lock is waited for whose holder has ended, or cannot be told. Nobody waits for a
  // living one.
  std::chrono::milliseconds limit{10'000};
  // Told once, when the waiting begins: one line of plain text.
  std::function<void(const std::string&)> say = nullptr;
};

// One wait for something that a process holds which may be on its way out. Not thread-safe.
class Patience {
 public:
  // `what`: how messages begin, "arena: /dev/shm/x is locked by". `wait` must outlive it.
  Patience(std::string what, const LockWait& wait);
  // Waits a little: OK, look again. FailedPrecondition: that process lives. Unavailable: the limit
  // has passed. `pid` 0: it is not told.
  absl::Status Wait(uint64_t pid, Life life);

 private:
  const std::string what_;
  const LockWait& wait_;
  const std::chrono::steady_clock::time_point deadline_;
  int living_ = 0;  // looks in a row at which somebody living had it
  bool said_ = false;
};

// Locks `fd`, for the life of its description; asks for the holder's name at `name_at`. `what`
// names the file in messages: "arena: /dev/shm/x". FailedPrecondition: a living process holds it,
// and which. Unavailable: the wait is over, and no living process is known to hold it. Internal:
// the file cannot be locked at all.
absl::Status LockFile(int fd, const std::string& what, uint64_t name_at, const LockWait& wait);

// Writes this process's name into a file that it has locked. Where that fails, the next one waits
// instead of asking.
void NameHolder(int fd, uint64_t name_at);
// Takes the name out again: before the descriptor is closed.
void ForgetHolder(int fd, uint64_t name_at);

// Waits until no other process holds a record lock (fcntl) on the file; one that is missing or
// cannot be opened is not locked. Errors as LockFile. Requires: this process holds none on it, for
// it would lose that.
absl::Status AwaitRecordLock(const std::string& path, const std::string& what,
                             const LockWait& wait);

// Whether the process that is named at `name_at` is known to have ended.
bool HolderHasEnded(int fd, uint64_t name_at);

// Whether nobody holds the lock (flock) of the file, at this moment; nobody does where there is
// none. False, too, when the file cannot be opened.
bool IsUnlocked(const std::string& path);

}  // namespace prefixd::base
