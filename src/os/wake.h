// Waking a thread that waits for descriptors, and waiting with a limit.
#pragma once
#include <poll.h>

#include <chrono>
#include <span>

namespace prefixd::os {

// A descriptor that another thread makes readable. linux: an eventfd. portable: a pipe.
//
// Thread-safe. Without descriptors (the process has too many) fd() is -1, which poll() ignores.
class Wake {
 public:
  Wake();
  ~Wake();
  Wake(Wake&& other) noexcept;
  Wake& operator=(Wake&& other) noexcept;

  int fd() const { return read_end_; }
  explicit operator bool() const { return read_end_ >= 0; }
  // Makes fd() readable, until Clear(). Never waits.
  void Set() const;
  // Makes fd() unreadable if it was readable. Never waits.
  void Clear() const;
  // Gives the descriptors back; only the move and the destructor are left.
  void Close();

 private:
  int read_end_ = -1, write_end_ = -1;  // linux: one
};

// Waits until a descriptor is ready, `limit` has passed or a signal came. portable: limits are
// rounded up to milliseconds.
void PollFor(std::span<pollfd> descriptors, std::chrono::nanoseconds limit);

}  // namespace prefixd::os
