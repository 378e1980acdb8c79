#include "client/worker/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace prefixd::worker {
namespace {

std::vector<uint32_t> Draw(Sampler sampler, const std::vector<float>& logits, int count) {
  std::vector<uint32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(sampler.Sample(logits));
  return tokens;
}

TEST(SamplerTest, GreedyTakesTheLargestAndTheLowestAmongEquals) {
  const std::vector<float> logits = {-1, 3, 2, 3};
  EXPECT_EQ(Draw(Sampler(0, 7), logits, 3), (std::vector<uint32_t>{1, 1, 1}));
}

TEST(SamplerTest, TheSameSeedGivesTheSameTokens) {
  const std::vector<float> logits = {0.1F, 0.2F, 0.3F, 0.4F, 0.5F};
  const auto first = Draw(Sampler(1, 42), logits, 100);
  EXPECT_EQ(Draw(Sampler(1, 42), logits, 100), first);
  EXPECT_NE(Draw(Sampler(1, 43), logits, 100), first);
}

// The numbers are the generator's own, not a library's: they stay from platform to platform.
TEST(SamplerTest, TokensOfASeedAreTheSameOnEveryMachine) {
  const std::vector<float> logits(8, 0.0F);
  EXPECT_EQ(Draw(Sampler(1, 5489), logits, 6), (std::vector<uint32_t>{6, 2, 5, 7, 0, 3}));
}

TEST(SamplerTest, TemperatureOneFollowsTheSoftmax) {
  const std::vector<float> logits = {std::log(1.0F), std::log(2.0F), std::log(5.0F),
                                     -std::numeric_limits<float>::infinity()};
  std::vector<int> counts(4);
  for (uint32_t token : Draw(Sampler(1, 1), logits, 80000)) ++counts[token];
  EXPECT_NEAR(counts[0], 10000, 500);
  EXPECT_NEAR(counts[1], 20000, 600);
  EXPECT_NEAR(counts[2], 50000, 700);
  EXPECT_EQ(counts[3], 0);
}

TEST(SamplerTest, LowTemperatureSharpensWithoutOverflow) {
  const std::vector<float> logits = {1000, 999, -1000};
  for (uint32_t token : Draw(Sampler(0.01, 1), logits, 100)) EXPECT_EQ(token, 0U);
}

}  // namespace
}  // namespace prefixd::worker
