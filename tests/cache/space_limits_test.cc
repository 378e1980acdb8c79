// Floors, ceilings and time to live of spaces through the whole cache.
#include "fixture.h"

namespace prefixd::testing {
namespace {

class SpaceLimitsTest : public CacheTest {
 protected:
  ~SpaceLimitsTest() override { cache_.reset(); }  // before its clock
  void Begin(cache::Options options) {
    options.clock = &clock_;
    Open(options);
    mine_ = OpenSpace(identity_);
    others_ = OpenSpace(other_identity_);
  }
  block::SpaceSummary SummaryOf(const block::SpaceIdentity& identity) {
    for (const block::SpaceSummary& space : cache_->ListSpaces()) {
      if (space.id == block::IdOf(identity)) return space;
    }
    return {};
  }
  absl::Status Set(const block::SpaceLimits& limits) {
    return cache_->SetSpaceLimits(block::IdOf(identity_), limits).status();
  }
  static block::SpaceIdentity Other() {
    block::SpaceIdentity identity = Qwen3Identity();
    identity.model = "other";
    return identity;
  }
  const block::SpaceIdentity identity_ = Qwen3Identity(), other_identity_ = Other();
  const Tokens prompt_ = RandomTokens(1, 128);
  base::FakeClock clock_;
  block::SpaceHandle mine_, others_;
};

TEST_F(SpaceLimitsTest, AFloorHoldsAgainstAnotherSpacesChurn) {
  Begin(RamOnly());
  ASSERT_TRUE(Store(identity_, mine_, prompt_).ok());
  ASSERT_TRUE(Set({.ram_floor_bytes = uint64_t{8} << 20}).ok());
  for (uint64_t seed = 10; seed < 20; ++seed) {
    ASSERT_TRUE(Store(other_identity_, others_, RandomTokens(seed, 256)).ok());
  }
  EXPECT_EQ(ReadBack(identity_, mine_, prompt_), 128u);
}

TEST_F(SpaceLimitsTest, ACeilingHoldsWithRoomToSpare) {
  Begin(RamOnly());
  ASSERT_TRUE(Set({.ram_ceiling_bytes = uint64_t{10} << 20}).ok());
  for (uint64_t seed = 10; seed < 14; ++seed) {
    ASSERT_TRUE(Store(identity_, mine_, RandomTokens(seed, 128)).ok());
    EXPECT_LE(SummaryOf(identity_).ram_extent_bytes, uint64_t{10} << 20);
  }
  EXPECT_EQ(ReadBack(identity_, mine_, RandomTokens(13, 128)), 128u);
  EXPECT_EQ(ReadBack(identity_, mine_, RandomTokens(10, 128)), 0u);
}

TEST_F(SpaceLimitsTest, WhatNobodyUsedForItsTimeIsGoneWhateverRoomThereIs) {
  Begin(RamOnly());
  ASSERT_TRUE(Set({.ttl_ms = 60'000}).ok());
  const Tokens used = RandomTokens(2, 128);
  ASSERT_TRUE(Store(identity_, mine_, prompt_).ok());
  ASSERT_TRUE(Store(identity_, mine_, used).ok());
  ASSERT_TRUE(Store(other_identity_, others_, prompt_).ok());
  clock_.Advance(40'000'000);
  EXPECT_EQ(ReadBack(identity_, mine_, used), 128u);
  clock_.Advance(30'000'000);
  EXPECT_EQ(ReadBack(identity_, mine_, prompt_), 0u);
  EXPECT_EQ(ReadBack(identity_, mine_, used), 128u);
  EXPECT_EQ(ReadBack(other_identity_, others_, prompt_), 128u);
  clock_.Advance(1'000'000'000);  // nothing happened in between
  EXPECT_EQ(ReadBack(identity_, mine_, used), 0u);
  EXPECT_GT(Counter("pages.expired"), 0u);
}

TEST_F(SpaceLimitsTest, LimitsAreRememberedWhereThereIsAnSsd) {
  Begin(WithSsd());
  const block::SpaceLimits limits{.ram_floor_bytes = 1 << 20,
                                  .ram_ceiling_bytes = 9 << 20,
                                  .ssd_ceiling_bytes = 7 << 20,
                                  .ttl_ms = 5000,
                                  .ssd_floor_bytes = 3 << 20};
  EXPECT_TRUE(*cache_->SetSpaceLimits(block::IdOf(identity_), limits));
  Begin(WithSsd());
  EXPECT_EQ(SummaryOf(identity_).limits, limits);
  EXPECT_EQ(SummaryOf(other_identity_).limits, block::SpaceLimits{});
  Begin(RamOnly());
  EXPECT_EQ(Set(limits).code(), absl::StatusCode::kResourceExhausted);  // a floor on no SSD
  EXPECT_FALSE(*cache_->SetSpaceLimits(block::IdOf(identity_), {.ttl_ms = 5000}));
}

// What other spaces write pushes everything else out: a space like it without a floor goes.
TEST_F(SpaceLimitsTest, BelowItsFloorOnSsdASpaceKeepsItsCopies) {
  cache::Options options = WithSsd();
  options.ssd_budget_bytes = uint64_t{32} << 20;
  options.segment_bytes = uint64_t{1} << 20;
  Begin(options);
  const auto small = SmallIdentity(64, 4);
  auto twin = small, large = small;
  twin.model = "twin";
  large.model = "large";
  const auto kept = OpenSpace(small), gone = OpenSpace(twin), rest = OpenSpace(large);
  ASSERT_TRUE(Store(small, kept, RandomTokens(1, 640)).ok());
  ASSERT_TRUE(Store(twin, gone, RandomTokens(1, 640)).ok());
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  const uint64_t on_ssd = SummaryOf(small).ssd_page_bytes;
  ASSERT_GT(on_ssd, 0u);
  ASSERT_EQ(SummaryOf(twin).ssd_page_bytes, on_ssd);
  const auto limit = [&](uint64_t floor) {
    return cache_->SetSpaceLimits(block::IdOf(small), {.ssd_floor_bytes = floor}).ok();
  };
  uint64_t seed = 1000;
  const auto fill_until_gone = [&](const block::SpaceIdentity& space) {
    for (int round = 0; round < 200 && SummaryOf(space).ssd_page_bytes > 0; ++round) {
      ASSERT_TRUE(Store(large, rest, RandomTokens(++seed, 2048)).ok());
      cache_->Flush(In(20000));
    }
    EXPECT_EQ(SummaryOf(space).ssd_page_bytes, 0u);
  };
  ASSERT_TRUE(limit(on_ssd));
  fill_until_gone(twin);
  EXPECT_EQ(SummaryOf(small).ssd_page_bytes, on_ssd);
  EXPECT_GT(Counter("bytes.rewritten"), 0u);
  EXPECT_EQ(Counter("rewrites.given_up"), 0u);  // for want of room
  ASSERT_TRUE(limit(0));
  fill_until_gone(small);
}

TEST_F(SpaceLimitsTest, LimitsThatCannotBeKeptAreRefused) {
  Begin(RamOnly());
  EXPECT_EQ(Set({.ram_floor_bytes = 2, .ram_ceiling_bytes = 1}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Set({.ram_floor_bytes = uint64_t{60} << 20}).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cache_->SetSpaceLimits({}, {}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SpaceLimitsTest, AClearSaysWhatWaitsOnSsd) {
  Begin(WithSsd());
  ASSERT_TRUE(Store(identity_, mine_, prompt_).ok());
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  const uint64_t on_ssd = SummaryOf(identity_).ssd_page_bytes;
  ASSERT_GT(on_ssd, 0u);
  EXPECT_LT(Counter("ssd.waiting_bytes"), on_ssd);
  EXPECT_EQ(cache_->Clear(nullptr)->waiting_ssd_bytes, on_ssd);
  EXPECT_GE(Counter("ssd.waiting_bytes"), on_ssd);
}

}  // namespace
}  // namespace prefixd::testing
