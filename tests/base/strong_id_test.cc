#include "base/strong_id.h"

#include <type_traits>

#include "gtest/gtest.h"

#include "base/clock.h"
#include "base/status.h"

namespace prefixd::base {
namespace {

using Apple = StrongId<struct AppleTag>;
using Pear = StrongId<struct PearTag>;

static_assert(!std::is_convertible_v<Apple, Pear>);
static_assert(!std::is_convertible_v<uint64_t, Apple>);
static_assert(!std::is_convertible_v<Apple, uint64_t>);
static_assert(!std::is_convertible_v<Apple, bool>);

struct SumHash {
  uint64_t sum = 0;
  static SumHash combine(SumHash hash, uint64_t value) { return {hash.sum + value}; }
};

TEST(StrongIdTest, ZeroIsNone) {
  EXPECT_FALSE(Apple{});
  EXPECT_TRUE(Apple{1});
}

TEST(StrongIdTest, IdsCompareAndHashByValue) {
  EXPECT_EQ(Apple{3}, Apple{3});
  EXPECT_LT(Apple{3}, Apple{4});
  EXPECT_EQ(AbslHashValue(SumHash{}, Apple{3}).sum, 3u);
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("half: odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  PREFIXD_ASSIGN_OR_RETURN(const int half, Half(value));
  PREFIXD_RETURN_IF_ERROR(Half(half).status());
  return Half(half);
}

TEST(StatusMacrosTest, TheFirstErrorIsReturned) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_TRUE(absl::IsInvalidArgument(Quarter(7).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Quarter(6).status()));
}

TEST(ClockTest, AFakeClockStandsStillUntilItIsMoved) {
  FakeClock clock;
  const int64_t start = clock.MonotonicMicros();
  EXPECT_EQ(clock.MonotonicMicros(), start);
  clock.Advance(250);
  EXPECT_EQ(clock.MonotonicMicros(), start + 250);
  const int64_t before = SystemClock::Get().MonotonicMicros();  // arguments have no order
  EXPECT_LE(before, SystemClock::Get().MonotonicMicros());
}

}  // namespace
}  // namespace prefixd::base
