// Takes a file's lock (flock) from a process that may be ending.
//
// The kernel releases a killed process's locks only when it has closed the process's files. On a
// host of many cores that is a moment after the process was reaped, so a taken lock does not prove
// a living holder. The holder therefore writes its name into the file, and the next process checks
// whether that holder lives.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

#include "base/process.h"

namespace prefixd::base {

struct LockWait {
  // The longest wait for a lock whose holder has ended or is not known. Nobody waits for one that
  // lives.
  std::chrono::milliseconds limit{10'000};
  // Called once, when the wait begins, with one line of plain text.
  std::function<void(const std::string&)> say = nullptr;
};

// One wait for something that is held by a process that may be ending. Not thread-safe.
class Patience {
 public:
  // `what` begins every message: "arena: /dev/shm/x is locked by". `wait` must outlive this object.
  Patience(std::string what, const LockWait& wait);
  // Sleeps a little and returns OK: the caller looks again. FailedPrecondition: several looks in a
  // row found the process alive. Unavailable: the limit has passed. `pid` is 0 if it is unknown.
  absl::Status Wait(uint64_t pid, Life life);

 private:
  const std::string what_;
  const LockWait& wait_;
  const std::chrono::steady_clock::time_point deadline_;
  int living_ = 0;  // looks in a row that found a living holder
  bool said_ = false;
};

// Locks `fd` for the life of its open file description; reads the holder's name at `name_at`.
// `what` names the file in messages: "arena: /dev/shm/x". FailedPrecondition names the living
// process that holds the lock. Unavailable: the wait is over and no living holder is known.
// Internal: the file cannot be locked at all.
absl::Status LockFile(int fd, const std::string& what, uint64_t name_at, const LockWait& wait);

// Writes this process's name into a file that it has locked. If the write fails, the next process
// waits instead of checking the holder.
void NameHolder(int fd, uint64_t name_at);
// Erases the name. Call it before the descriptor is closed.
void ForgetHolder(int fd, uint64_t name_at);

// Waits until no other process holds a record lock (fcntl) on the file. A file that is missing or
// cannot be opened counts as unlocked. Returns errors as LockFile does. Requires: this process
// holds no record lock on the file, since this call would release it.
absl::Status AwaitRecordLock(const std::string& path, const std::string& what,
                             const LockWait& wait);

// Returns true if the process named at `name_at` is known to have ended.
bool HolderHasEnded(int fd, uint64_t name_at);

// Returns true if nobody holds the file's lock (flock) at this moment, or if there is no such file.
// Returns false also when the file cannot be opened.
bool IsUnlocked(const std::string& path);

}  // namespace prefixd::base
