// Pins through the whole cache: what they keep, load, count and when they end.
#include "fixture.h"

namespace prefixd::testing {
namespace {

class PinTest : public CacheTest {
 protected:
  ~PinTest() override { cache_.reset(); }  // before its clock

  // Opens, with a prompt stored.
  void Begin(cache::Options options) {
    options.clock = &clock_;
    Open(options);
    space_ = OpenSpace(identity_);
    ASSERT_TRUE(Store(identity_, space_, prompt_).ok());
  }
  absl::StatusOr<cache::Pinned> Pin(const Tokens& tokens, std::chrono::milliseconds ttl = {},
                                    block::SessionId session = {}) {
    cache::Request request;
    request.space = space_;
    request.tokens = tokens;
    return cache_->Pin(session ? session : session_, request, ttl, In(20000));
  }
  // Enough of other prompts to push everything out that can go.
  void Churn(uint64_t seed = 1000) {
    for (uint64_t i = 0; i < 16; ++i) {
      ASSERT_TRUE(Store(identity_, space_, RandomTokens(seed + i, 256)).ok());
      ReadBack(identity_, space_, RandomTokens(seed + i, 256));  // or what was read is spared
    }
  }
  const block::SpaceIdentity identity_ = Qwen3Identity();
  const Tokens prompt_ = RandomTokens(1, 100);
  base::FakeClock clock_;
  block::SpaceHandle space_;
};

TEST_F(PinTest, APinOutlivesItsSessionAndChurnAndEndsByTheClock) {
  Begin(RamOnly());
  const block::SessionId maker = SessionWith(identity_, "maker");
  const auto pinned = Pin(prompt_, std::chrono::seconds(60), maker);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_EQ(pinned->tokens, 100u);
  EXPECT_GT(pinned->bytes, 0u);
  cache_->EndSession(maker);
  clock_.Advance(59'000'000);
  Churn();
  EXPECT_EQ(ReadBack(identity_, space_, prompt_), 100u);
  ASSERT_EQ(cache_->ListPins().size(), 1u);
  EXPECT_EQ(cache_->ListPins()[0].worker, "maker");
  EXPECT_NEAR(cache_->ListPins()[0].left_s, 1, 1e-6);
  EXPECT_EQ(cache_->GetStats().pinned_bytes, pinned->bytes);
  clock_.Advance(1'000'000);
  EXPECT_TRUE(cache_->ListPins().empty());
  EXPECT_EQ(cache_->GetStats().pinned_bytes, 0u);
  Churn(2000);
  EXPECT_EQ(ReadBack(identity_, space_, prompt_), 0u);
  EXPECT_EQ(Counter("pins.expired"), 1u);
}

TEST_F(PinTest, WhatIsOnSsdIsLoadedAndStaysInRam) {
  Begin(WithSsd());
  Churn();
  cache::Request request;
  request.space = space_;
  request.tokens = prompt_;
  ASSERT_GT(cache_->Match(session_, request)->ssd_bytes, 0u);
  ASSERT_EQ(Pin(prompt_)->tokens, 100u);
  EXPECT_EQ(cache_->Match(session_, request)->ssd_bytes, 0u);
  Churn(2000);
  EXPECT_EQ(cache_->Match(session_, request)->ssd_bytes, 0u);
  EXPECT_EQ(ReadBack(identity_, space_, prompt_), 100u);
}

TEST_F(PinTest, PinningAgainReplacesThePin) {
  Begin(RamOnly());
  const auto first = Pin(prompt_, std::chrono::seconds(10));
  clock_.Advance(5'000'000);
  const auto again = Pin(prompt_, std::chrono::seconds(10));
  EXPECT_EQ(again->pin, first->pin);
  EXPECT_EQ(again->bytes, first->bytes);
  clock_.Advance(6'000'000);
  EXPECT_EQ(cache_->ListPins().size(), 1u);
  // A prompt of which more is cached by now: the pin grows.
  const Tokens longer = RandomTokens(77, 160);
  const Tokens part(longer.begin(), longer.begin() + 64);
  ASSERT_TRUE(Store(identity_, space_, part).ok());
  EXPECT_EQ(Pin(longer)->tokens, 64u);
  ASSERT_TRUE(Store(identity_, space_, longer).ok());
  EXPECT_EQ(Pin(longer)->tokens, 160u);
  EXPECT_EQ(cache_->ListPins().size(), 2u);
}

TEST_F(PinTest, UnpinTakesAnIdOrTheSequence) {
  Begin(RamOnly());
  const auto pinned = Pin(prompt_);
  EXPECT_EQ(*cache_->Unpin(pinned->pin), pinned->bytes);
  EXPECT_EQ(cache_->Unpin(pinned->pin).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Pin(prompt_).ok());
  cache::Request request;
  request.space = space_;
  request.tokens = prompt_;
  EXPECT_TRUE(cache_->Unpin(session_, request).ok());
  EXPECT_EQ(cache_->Unpin(session_, request).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(cache_->ListPins().empty());
}

TEST_F(PinTest, NothingCachedIsNoPinAndNoError) {
  Begin(RamOnly());
  const auto pinned = Pin(RandomTokens(99, 100));
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_FALSE(pinned->pin);
  EXPECT_EQ(pinned->match.ended_by, block::EndReason::kNeverStored);
  EXPECT_TRUE(cache_->ListPins().empty());
}

TEST_F(PinTest, BeyondTheQuotaThePinIsRefusedAndNothingIsHeld) {
  Begin(RamOnly());
  // Half of the arena is 28 MiB; a prompt of 320 tokens takes 19.5 MiB.
  const Tokens big = RandomTokens(5, 320), bigger = RandomTokens(6, 320);
  ASSERT_TRUE(Store(identity_, space_, big).ok());
  const auto held = Pin(big);
  ASSERT_TRUE(held.ok()) << held.status();
  ASSERT_TRUE(Store(identity_, space_, bigger).ok());
  const auto refused = Pin(bigger);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << held->bytes;
  EXPECT_NE(refused.status().message().find("half of the RAM tier"), std::string::npos);
  EXPECT_EQ(cache_->ListPins().size(), 1u);
  EXPECT_EQ(cache_->GetStats().leases, 0u);
  EXPECT_EQ(cache_->GetStats().pinned_bytes, held->bytes);
}

TEST_F(PinTest, AClearEndsPins) {
  Begin(RamOnly());
  const auto pinned = Pin(prompt_);
  ASSERT_TRUE(cache_->Clear(nullptr).ok());
  EXPECT_TRUE(cache_->ListPins().empty());
  EXPECT_EQ(cache_->Unpin(pinned->pin).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadBack(identity_, space_, prompt_), 0u);
}

TEST_F(PinTest, ARestartKeepsThePagesAndForgetsThePin) {
  Begin(WithSsd());
  ASSERT_TRUE(Pin(prompt_).ok());
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  Open(WithSsd());
  space_ = OpenSpace(identity_);
  EXPECT_TRUE(cache_->ListPins().empty());
  EXPECT_EQ(ReadBack(identity_, space_, prompt_), 100u);
}

}  // namespace
}  // namespace prefixd::testing
