// What the log says every second of a stop: what is left to save, how long that takes at the speed
// so far, and when it is given up.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>

namespace prefixd::daemon {

class DrainProgress {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `unsaved` bytes wait at `begin`. Nothing is saved after `deadline`.
  DrainProgress(uint64_t unsaved, Time begin, Time deadline)
      : unsaved_(unsaved), begin_(begin), deadline_(deadline) {}

  // "draining: 1.2 GiB left, about 7 s, 24 s until the deadline". Leaves out "about" while nothing
  // was saved, or when workers stored more than was saved.
  std::string Line(uint64_t left, Time now) const;

 private:
  const uint64_t unsaved_;
  const Time begin_;
  const Time deadline_;
};

}  // namespace prefixd::daemon
