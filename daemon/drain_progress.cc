#include "daemon/drain_progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "base/size.h"

namespace prefixd::daemon {
namespace {

double Seconds(std::chrono::steady_clock::duration time) {
  return std::max(0.0, std::chrono::duration<double>(time).count());
}

}  // namespace

std::string DrainProgress::Line(uint64_t left, Time now) const {
  std::string line = absl::StrCat("draining: ", base::FormatBytes(left), " left");
  if (left > 0 && left < unsaved_) {
    const double saved = static_cast<double>(unsaved_ - left);
    const double seconds = Seconds(now - begin_) * static_cast<double>(left) / saved;
    absl::StrAppend(&line, ", about ", std::ceil(seconds), " s");
  }
  return absl::StrCat(line, ", ", std::round(Seconds(deadline_ - now)), " s until the deadline");
}

}  // namespace prefixd::daemon
