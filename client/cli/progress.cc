#include "client/cli/progress.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/units.h"

namespace prefixd::cli {
namespace {

std::string TimeLeft(double seconds, uint64_t passed, uint64_t whole) {
  constexpr double kSettled = 1;
  if (seconds < kSettled || passed == 0 || passed == whole) return "";
  const double left = seconds * static_cast<double>(whole - passed) / static_cast<double>(passed);
  return absl::StrCat(", ", UptimeText(left + 0.5), " left");
}

}  // namespace

double SecondsNow() {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return now.count();
}

Progress::Progress(std::ostream* out, std::function<double()> now)
    : out_(out), now_(std::move(now)), begin_s_(now_()) {}

Progress::~Progress() {
  if (columns_ > 0) *out_ << std::endl;
}

void Progress::Show(uint64_t passed, uint64_t whole, const std::string& detail) {
  if (out_ == nullptr) return;
  passed = std::min(passed, whole);
  std::string line = absl::StrCat(BarText(passed, whole), " ", PercentText(passed, whole),
                                  TimeLeft(now_() - begin_s_, passed, whole), "  ", detail);
  const size_t columns = line.size();
  if (columns < columns_) line.append(columns_ - columns, ' ');
  columns_ = columns;
  *out_ << '\r' << line << std::flush;
}

}  // namespace prefixd::cli
