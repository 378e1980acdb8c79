#include "bench/common/families.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace prefixd::bench {
namespace {

std::string Time(double seconds) {
  constexpr double kMostSeconds = 100;
  return seconds < kMostSeconds ? absl::StrCat(static_cast<int>(seconds + 0.5), " s")
                                : absl::StrCat(static_cast<int>(seconds / 60 + 0.5), " min");
}

}  // namespace

std::string StepText(const std::string& workload, const std::string& family, size_t number,
                     size_t count, double seconds) {
  std::string text = absl::StrCat(workload, ": ", family, ", ", number, " of ", count);
  if (number == 1) return text;
  const double done = static_cast<double>(number) - 1;
  const double left = static_cast<double>(count) - done;
  absl::StrAppend(&text, ", ", Time(seconds), " so far, about ", Time(seconds / done * left),
                  " left");
  return text;
}

void RunFamilies(Bench& bench, const std::vector<Family>& families) {
  std::vector<Family> wanted;
  for (const Family& family : families) {
    if (bench.Wants(family.name)) wanted.push_back(family);
  }
  const bool is_watched = ::isatty(STDERR_FILENO) == 1;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t number = 1; number <= wanted.size(); ++number) {
    const Family& family = wanted[number - 1];
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    const std::string text =
        StepText(bench.workload(), family.name, number, wanted.size(), passed.count());
    if (is_watched) std::fprintf(stderr, "%s\n", text.c_str());
    family.run();
  }
}

}  // namespace prefixd::bench
