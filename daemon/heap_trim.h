// When to give free memory of glibc's heaps back to the kernel.
//
// Large allocations come and go, small ones among them stay. glibc keeps what is free between them
// until it is asked: tens of MiB that no budget knows of. A flood of long messages leaves so much
// within tenths of a second, on 16 cores within hundredths. But a stream of pages needs its few MiB
// again at once: to give them back and take them from the kernel costs a Put a sixth of its speed,
// so they go once a second.
//
// Used by one thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>

namespace prefixd::daemon {

struct HeapUse {
  uint64_t resident_bytes = 0;   // of the process, in memory that belongs to no file
  uint64_t allocated_bytes = 0;  // of that, what malloc's callers have
};
HeapUse HeapUseNow();

class HeapTrim {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Says whether to trim. mallinfo2() counts what was given back as free, so free is what the
  // process has beyond what is allocated, less what it had beyond that after the last trim.
  bool IsDue(const HeapUse& use, Time now);
  void Trimmed(const HeapUse& after, Time now);
  // Returns how long to wait until the next look.
  std::chrono::milliseconds NextLook(Time now) const;

 private:
  std::optional<int64_t> kept_bytes_;  // what no trim gives back
  std::optional<Time> last_trim_;
  std::optional<Time> flood_until_;
};

}  // namespace prefixd::daemon
