// What Match says, rule by rule.
#include <gmock/gmock.h>

#include "index_fixture.h"

namespace prefixd::index {
namespace {

using block::EndReason;
using block::MatchKind;
using block::Shortening;
using block::ShortenReason;
using testing::ElementsAre;

class SeedStoryTest : public IndexTest {
 protected:
  SeedStoryTest() : IndexTest(64) {}
};

// A2 seed-story: 53 tokens, the same to 253, then 44 sharing 17, then those to 194.
TEST_F(SeedStoryTest, TokensAreHeldOnceAndSeventeenOfFortyFourAreCached) {
  const Tokens first = Count(1000, 253);
  const Tokens second = Join(FirstOf(first, 17), Count(5000, 177));
  Store(FirstOf(first, 53));
  EXPECT_EQ(Summary().stored_tokens, 53u);
  EXPECT_EQ(Match(first).matched_tokens, 53u);
  Store(first);
  EXPECT_EQ(Summary().stored_tokens, 253u);
  const auto answer = Match(FirstOf(second, 44));
  EXPECT_EQ(answer.matched_tokens, 17u);
  EXPECT_EQ(answer.restorable_tokens, 17u);
  EXPECT_EQ(answer.kind, MatchKind::kLcp);
  EXPECT_EQ(answer.ended_by, EndReason::kDiverged);
  EXPECT_EQ(answer.diverged_sequences, 2u);
  Store(FirstOf(second, 44));
  EXPECT_EQ(Summary().stored_tokens, 297u);
  Store(second);
  EXPECT_EQ(Summary().stored_tokens, 447u);
  EXPECT_EQ(Summary().ends, 4u);
  EXPECT_EQ(Match(FirstOf(first, 53)).kind, MatchKind::kExact);
  EXPECT_EQ(Match(FirstOf(second, 44)).kind, MatchKind::kExact);
}

}  // namespace
}  // namespace prefixd::index
