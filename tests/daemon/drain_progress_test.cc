#include "daemon/drain_progress.h"

#include <gtest/gtest.h>

namespace prefixd::daemon {
namespace {

using std::chrono::seconds;

constexpr uint64_t kGibibyte = uint64_t{1} << 30;
const DrainProgress::Time kBegin{};

TEST(DrainProgressTest, SaysWhatIsLeftAndHowLongItTakesAtTheSpeedSoFar) {
  const DrainProgress progress(4 * kGibibyte, kBegin, kBegin + seconds(30));
  EXPECT_EQ(progress.Line(3 * kGibibyte, kBegin + seconds(2)),
            "draining: 3.0 GiB left, about 6 s, 28 s until the deadline");
  EXPECT_EQ(progress.Line(0, kBegin + seconds(8)), "draining: 0 B left, 22 s until the deadline");
}

TEST(DrainProgressTest, SaysNoTimeWhereNothingWasSavedOrMoreWasStored) {
  const DrainProgress progress(kGibibyte, kBegin, kBegin + seconds(30));
  for (const uint64_t left : {kGibibyte, 2 * kGibibyte}) {
    const std::string line = progress.Line(left, kBegin + seconds(5));
    EXPECT_EQ(line.find("about"), std::string::npos) << line;
  }
  EXPECT_EQ(progress.Line(kGibibyte, kBegin + seconds(31)),
            "draining: 1.0 GiB left, 0 s until the deadline");
}

}  // namespace
}  // namespace prefixd::daemon
