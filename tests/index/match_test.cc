// What Match says, rule by rule.
#include <gmock/gmock.h>

#include "base/steps.h"
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

TEST_F(IndexTest, KindsAreLabelsOfTheTree) {
  const Tokens stored = Count(1, 40);
  EXPECT_EQ(Match(stored).kind, MatchKind::kNone);
  EXPECT_EQ(Match(stored).ended_by, EndReason::kNeverStored);
  Store(stored);
  EXPECT_EQ(Match(stored).kind, MatchKind::kExact);
  EXPECT_EQ(Match(FirstOf(stored, 39)).kind, MatchKind::kSupersequence);
  EXPECT_EQ(Match(FirstOf(stored, 32)).kind, MatchKind::kSupersequence);
  EXPECT_EQ(Match(Join(stored, {9, 9})).kind, MatchKind::kPrefix);
  EXPECT_EQ(Match(Join(stored, {9, 9})).ended_by, EndReason::kNeverStored);
  EXPECT_EQ(Match(Join(FirstOf(stored, 20), {9})).kind, MatchKind::kLcp);
  EXPECT_EQ(Match({99}).kind, MatchKind::kNone);
}

TEST_F(IndexTest, AnEndInsideALongerBlockStillMakesPrefixAndExact) {
  const Tokens stored = Count(1, 30);
  Store(FirstOf(stored, 20));
  Store(stored);
  EXPECT_EQ(Match(FirstOf(stored, 20)).kind, MatchKind::kExact);
  EXPECT_EQ(Match(Join(FirstOf(stored, 20), {9})).kind, MatchKind::kPrefix);
  EXPECT_EQ(Match(Join(FirstOf(stored, 20), {9})).ended_by, EndReason::kDiverged);
  EXPECT_EQ(Summary().blocks, 2u);
}

TEST_F(IndexTest, DivergedSequencesAreCountedUpToAThousand) {
  for (uint32_t i = 0; i < 1200; ++i) {
    Store({1, 2, 3, i});
    if (i == 499) {
      EXPECT_EQ(Match({1, 2, 3, 5000}).diverged_sequences, 500u);
    }
  }
  EXPECT_EQ(Match({1, 2, 3, 5000}).diverged_sequences, 1000u);
}

TEST_F(IndexTest, MaxTokensCutsTheLengthAndNotTheLabel) {
  const Tokens stored = Count(1, 40);
  Store(stored);
  const auto answer = Match(stored, {.max_tokens = 39});
  EXPECT_EQ(answer.kind, MatchKind::kExact);
  EXPECT_EQ(answer.restorable_tokens, 39u);
  EXPECT_THAT(answer.shortened_by,
              ElementsAre(Shortening{block::kAllGroups, ShortenReason::kMaxTokens, 1}));
}

TEST_F(IndexTest, EqualTokensOverOtherContentAreAnotherPrefix) {
  const Tokens tokens(24, 9);
  block::ContentKey cat{.start = 4, .item_offset = 0, .length = 10, .digest = {}};
  block::ContentKey dog = cat;
  cat.digest[0] = std::byte{1};
  dog.digest[0] = std::byte{2};
  Store({tokens, {&cat, 1}});
  EXPECT_EQ(index_.Match(space_, {tokens, {&cat, 1}}, {}).matched_tokens, 24u);
  EXPECT_EQ(index_.Match(space_, {tokens, {&dog, 1}}, {}).matched_tokens, 4u);
  EXPECT_EQ(Match(tokens).matched_tokens, 4u);
}

TEST_F(IndexTest, ACutInsideContentMovesToItsStartUnlessCausal) {
  const Tokens tokens(24, 9);
  const block::ContentKey cat{.start = 4, .item_offset = 0, .length = 10, .digest = {}};
  Store({tokens, {&cat, 1}});
  const auto answer = index_.Match(space_, {tokens, {&cat, 1}}, {.max_tokens = 11});
  EXPECT_EQ(answer.restorable_tokens, 4u);
  EXPECT_THAT(answer.shortened_by,
              ElementsAre(Shortening{block::kAllGroups, ShortenReason::kMaxTokens, 13},
                          Shortening{block::kAllGroups, ShortenReason::kAtomicContent, 7}));
  const MatchOptions causal{.max_tokens = 11, .causal_content = true};
  EXPECT_EQ(index_.Match(space_, {tokens, {&cat, 1}}, causal).restorable_tokens, 11u);
}

// Every token an item of its own.
std::vector<block::ContentKey> ItemsUnder(const Tokens& tokens) {
  std::vector<block::ContentKey> keys(tokens.size());
  for (uint32_t i = 0; i < keys.size(); ++i) {
    keys[i] = {.start = i, .length = 1};
    keys[i].digest[0] = static_cast<std::byte>(i);
    keys[i].digest[1] = static_cast<std::byte>(i >> 8);
  }
  return keys;
}

TEST_F(IndexTest, ManyContentKeysCostWhatTheyAre) {
  const auto steps_of = [&](uint32_t count) {
    const Tokens tokens(count, 9);
    const std::vector<block::ContentKey> keys = ItemsUnder(tokens);
    const uint64_t before = base::steps;
    Store({tokens, keys});
    EXPECT_EQ(index_.Match(space_, {tokens, keys}, {}).restorable_tokens, count);
    EXPECT_TRUE(index_.Acquire(space_, {tokens, keys}, {}, kMe).lease);
    EXPECT_TRUE(index_.CloseReservation(Reserve({tokens, keys})).ok());
    EndSession(kMe);
    return base::steps - before;
  };
  const uint64_t once = steps_of(4000), twice = steps_of(8000);
  EXPECT_GE(once, 4 * 4000u);
  EXPECT_LE(once, 16 * 4000u);
  EXPECT_LE(twice, 2 * once + 8 * 8000u / 16);  // and a comparison more a block
}

TEST_F(IndexTest, AShortRequestCostsTheSameBesideALongAnnouncement) {
  const Tokens tokens(8000, 9), start = FirstOf(tokens, 40);
  const std::vector<block::ContentKey> keys = ItemsUnder(tokens);
  const std::vector<block::ContentKey> first(keys.begin(), keys.begin() + 40);
  Store({start, first});
  const auto steps_of_match = [&] {
    const uint64_t before = base::steps;
    EXPECT_EQ(index_.Match(space_, {start, first}, {}).restorable_tokens, 40u);
    return base::steps - before;
  };
  const uint64_t alone = steps_of_match();
  Reserve({tokens, keys}, kOther);
  EXPECT_LE(steps_of_match(), alone + 100);
  EndSession(kOther);
}

TEST_F(IndexTest, AHoleIsMatchedThroughAndStopsTheLength) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  const uint64_t second = Acquire(stored).pages[1].extent.offset;
  EndSession(kMe);
  EXPECT_EQ(index_.EvictRange(second, second + 1, true).dropped_pages, 1u);
  EXPECT_EQ(Summary().holes, 1u);
  const auto answer = Match(stored);
  EXPECT_EQ(answer.matched_tokens, 48u);
  EXPECT_EQ(answer.restorable_tokens, 16u);
  EXPECT_EQ(answer.kind, MatchKind::kExact);
  EXPECT_THAT(answer.shortened_by,
              ElementsAre(Shortening{block::kAllGroups, ShortenReason::kEvicted, 32}));
  EXPECT_EQ(Match(Join(FirstOf(stored, 32), {99})).matched_tokens, 32u);
  Store(stored);  // heals it
  EXPECT_EQ(Summary().holes, 0u);
  EXPECT_EQ(Match(stored).restorable_tokens, 48u);
}

TEST_F(IndexTest, ASiblingLendsTheTokensItSharesWithAHole) {
  const Tokens stored = Count(1, 48);
  Store(stored);
  const uint64_t second = Acquire(stored).pages[1].extent.offset;
  EndSession(kMe);
  Store(Join(FirstOf(stored, 25), {99, 98}));
  index_.EvictRange(second, second + 1, true);
  const auto acquired = Acquire(stored);
  EXPECT_EQ(acquired.answer.restorable_tokens, 25u);
  ASSERT_EQ(acquired.pages.size(), 2u);
  EXPECT_EQ(acquired.pages[1].tokens, 9u);
  EXPECT_EQ(acquired.pages[1].name.tokens, 11u);
}

TEST_F(IndexTest, ABlockGivenUpWithoutDescendantsLeavesAGhost) {
  const Tokens stored = Count(1, 32);
  Store(stored);
  EvictAll();
  EXPECT_EQ(Summary().blocks + Summary().holes, 0u);
  EXPECT_EQ(index_.Counts().ghosts, 2u);
  EXPECT_EQ(Match(stored).ended_by, EndReason::kEvicted);
  EXPECT_EQ(Match(Count(100, 32)).ended_by, EndReason::kNeverStored);
  Store(stored);
  EXPECT_EQ(index_.Counts().ghosts, 0u);
}

class TwoRungsTest : public IndexTest {
 protected:
  TwoRungsTest() : IndexTest(16, {2, 1}) {}
};

TEST_F(TwoRungsTest, PagesInRungsThatTheCallerCannotUseAreAFormatLoss) {
  const Tokens stored = Count(1, 32);
  Store({stored, {}}, {.groups = {}, .rungs = {0b10, 0b1}});
  EXPECT_EQ(Match(stored).restorable_tokens, 32u);
  const auto answer = Match(stored, {.selection = {.groups = {}, .rungs = {0b01, 0b1}}});
  EXPECT_EQ(answer.matched_tokens, 32u);
  EXPECT_EQ(answer.restorable_tokens, 0u);
  EXPECT_THAT(answer.shortened_by, ElementsAre(Shortening{0, ShortenReason::kFormat, 32}));
}

TEST_F(TwoRungsTest, TheFinestUsableRungIsLeased) {
  const Tokens stored = Count(1, 16);
  Store({stored, {}}, {.groups = {}, .rungs = {0b10, 0b1}});
  Store({stored, {}}, {.groups = {}, .rungs = {0b01, 0b1}});
  EXPECT_EQ(Acquire(stored).pages[0].ref.rung, 0u);
  EXPECT_EQ(Acquire(stored, {.selection = {.groups = {}, .rungs = {0b10, 0b1}}}).pages[0].ref.rung,
            1u);
}

TEST_F(TwoRungsTest, ABlockCountsWhenEveryShardHasItsPage) {
  const Tokens stored = Count(1, 16);
  Store({stored, {}}, {.groups = {0}, .rungs = {}});
  EXPECT_EQ(Match(stored).restorable_tokens, 0u);
  EXPECT_THAT(Match(stored).shortened_by, ElementsAre(Shortening{1, ShortenReason::kEvicted, 16}));
  EXPECT_EQ(Match(stored, {.selection = {.groups = {0}, .rungs = {}}}).restorable_tokens, 16u);
  Store({stored, {}}, {.groups = {1}, .rungs = {}});
  EXPECT_EQ(Match(stored).restorable_tokens, 16u);
}

}  // namespace
}  // namespace prefixd::index
