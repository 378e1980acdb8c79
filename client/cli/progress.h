// How far a long command is, and how long it will take:
//
//   [#####---------------] 25.0 %, 42 s left  1.0 GiB, 0 bad
//
// Not for concurrent use. On a terminal each line is written over the one before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

namespace prefixd::cli {

// Seconds of a clock that never goes back.
double SecondsNow();

class Progress {
 public:
  // Shows nothing if `out` is null.
  explicit Progress(std::ostream* out, std::function<double()> now = SecondsNow);
  // Ends the line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // `passed` may exceed `whole`: it counts as all of it. The time left is that of the speed so far,
  // and is said once a second has passed.
  void Show(uint64_t passed, uint64_t whole, const std::string& detail);

 private:
  std::ostream* const out_;
  const std::function<double()> now_;
  const double begin_s_;
  size_t columns_ = 0;  // of the line that is shown
};

}  // namespace prefixd::cli
