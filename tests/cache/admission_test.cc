// What the SSD takes beyond its write budget, and commits that wait for the disk.
#include "cache/store/admission.h"

#include <thread>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

TEST(WriteBudgetTest, AWindowsWorthMayGoAtOnceAndComesBackAtTheRate) {
  base::FakeClock clock;
  cache::WriteBudget budget({.bytes_per_s = 1000, .window = std::chrono::seconds(60)}, &clock);
  EXPECT_EQ(budget.admits(), cache::Admission::kAll);
  EXPECT_EQ(budget.left_bytes(), 60'000u);
  budget.Take(61'000);
  EXPECT_EQ(budget.admits(), cache::Admission::kLikelyReuse);
  clock.Advance(1'000'000);
  EXPECT_EQ(budget.admits(), cache::Admission::kLikelyReuse);
  clock.Advance(1'000'000);
  EXPECT_EQ(budget.admits(), cache::Admission::kAll);
  EXPECT_NEAR(static_cast<double>(budget.left_bytes()), 1000, 1);
  clock.Advance(int64_t{3600} * 1'000'000);
  EXPECT_EQ(budget.left_bytes(), 60'000u);
}

// What the SSD holds is saved up at most; writing is paid for with what is asked for.
TEST(WriteBudgetTest, AShareOfWhatIsAskedForMayBeWritten) {
  base::FakeClock clock;
  cache::WriteBudget budget({.share = 0.25}, &clock);
  budget.SaveUpTo(1000);
  EXPECT_EQ(budget.admits(), cache::Admission::kNothing);
  budget.Asked(2000);
  EXPECT_EQ(budget.left_bytes(), 500u);
  EXPECT_EQ(budget.admits(), cache::Admission::kLikelyReuse);
  budget.Asked(1100);
  EXPECT_EQ(budget.admits(), cache::Admission::kAll);
  budget.Asked(100'000);
  EXPECT_EQ(budget.left_bytes(), 1000u);
  budget.Take(10'000);
  EXPECT_EQ(budget.admits(), cache::Admission::kNothing);
  clock.Advance(int64_t{3600} * 1'000'000);
  EXPECT_EQ(budget.admits(), cache::Admission::kNothing);  // time gives nothing
  budget.Asked(4'100);                                     // the debt is what may be saved up
  EXPECT_EQ(budget.admits(), cache::Admission::kLikelyReuse);
  budget.Add(1000);
  EXPECT_EQ(budget.admits(), cache::Admission::kAll);
}

TEST(LikelyReuseTest, APinnedBlockIsLikelyToBeUsedAgain) {
  const cache::LikelyReuse rule(64);
  index::SpillBlock block;
  block.first_token = 6400;
  EXPECT_FALSE(rule.Admits(block));
  block.pinned = true;
  EXPECT_TRUE(rule.Admits(block));
}

TEST(WriteBudgetTest, WhatTheTierGrowsByIsFilledAtOnce) {
  base::FakeClock clock;
  cache::WriteBudget budget({.share = 0.25}, &clock);
  budget.SaveUpTo(1000);
  budget.SaveUpTo(1000);
  EXPECT_EQ(budget.left_bytes(), 0u);
  budget.SaveUpTo(1600);
  EXPECT_EQ(budget.left_bytes(), 600u);
  budget.SaveUpTo(400);
  EXPECT_EQ(budget.left_bytes(), 400u) << "no more than the tier holds";
}

TEST(WriteBudgetTest, TheStricterOfBothSays) {
  base::FakeClock clock;
  cache::WriteBudget budget({.bytes_per_s = 100, .window = std::chrono::seconds(10), .share = 0.5},
                            &clock);
  budget.SaveUpTo(100'000);
  budget.Add(100'000);
  budget.Take(1000);
  EXPECT_EQ(budget.admits(), cache::Admission::kLikelyReuse);
  EXPECT_EQ(budget.left_bytes(), 0u);
}

TEST(WriteBudgetTest, RateZeroIsNoLimit) {
  base::FakeClock clock;
  cache::WriteBudget budget({}, &clock);
  budget.Take(uint64_t{1} << 60);
  EXPECT_EQ(budget.admits(), cache::Admission::kAll);
}

index::SpillBlock Block(uint8_t name, uint8_t parent, uint32_t first_token) {
  index::SpillBlock block;
  block.serials = {.own = name, .parent = parent};
  block.first_token = first_token;
  block.pages.resize(1);
  return block;
}

TEST(AdmissionRuleTest, ShallowUsedAndShortlyMissedBlocksAreAdmitted) {
  const cache::LikelyReuse rule(3072);
  index::SpillBlock block = Block(1, 0, 3071);
  EXPECT_TRUE(rule.Admits(block));
  block.first_token = 3072;
  EXPECT_FALSE(rule.Admits(block));
  block.touches = 1;
  EXPECT_TRUE(rule.Admits(block));
  block.touches = 0;
  block.was_ghost = true;
  EXPECT_TRUE(rule.Admits(block));
}

TEST(AdmissionRuleTest, AncestorsOfAdmittedBlocksAreAdmittedTheRestIsTakenOut) {
  std::vector<index::SpillBlock> blocks = {Block(1, 0, 9000), Block(2, 1, 9064), Block(3, 2, 9128),
                                           Block(4, 1, 9064)};
  blocks[1].touches = 1;
  const auto refused = cache::TakeRefused(cache::LikelyReuse(3072), &blocks);
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].serials.own, 1u);
  EXPECT_EQ(blocks[1].serials.own, 2u);
  EXPECT_EQ(refused.size(), 2u);
}

// Such a block has no serial, and nothing continues it.
TEST(AdmissionRuleTest, APartialBlockIsNobodysAncestor) {
  std::vector<index::SpillBlock> blocks = {Block(0, 0, 9000), Block(1, 0, 9000)};
  blocks[1].touches = 1;
  EXPECT_EQ(cache::TakeRefused(cache::LikelyReuse(3072), &blocks).size(), 1u);
}

Tokens FirstOf(const Tokens& tokens, size_t count) {
  return {tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count)};
}

using AdmissionTest = CacheTest;

TEST_F(AdmissionTest, BeyondTheWriteBudgetDeepUnusedBlocksAreDroppedAtEviction) {
  cache::Options options = WithSsd(uint64_t{32} << 20);
  options.segment_bytes = kMiB;
  options.ssd_write_bytes_per_s = 1;
  options.ssd_write_window = std::chrono::seconds(1);
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  const Tokens shallow = RandomTokens(1, 640);
  ASSERT_TRUE(Store(identity, space, shallow).ok());
  // Long sequences, together more than RAM holds.
  std::vector<Tokens> deep;
  for (uint64_t i = 0; i < 4; ++i) {
    deep.push_back(RandomTokens(100 + i, 12288));
    for (size_t tokens = 2048; tokens <= deep[i].size(); tokens += 2048) {
      const auto stored = Store(identity, space, FirstOf(deep[i], tokens));
      ASSERT_TRUE(stored.ok()) << stored.status();
      ASSERT_EQ(stored->stored_tokens, 2048u);
    }
  }
  EXPECT_GT(Counter("admission.refused_blocks"), 0u);
  EXPECT_GT(Counter("pages.dropped"), 0u);
  EXPECT_GT(Counter("pages.spilled"), 0u);
  EXPECT_EQ(ReadBack(identity, space, shallow), 640u);
  uint32_t least = 12288;
  for (const Tokens& tokens : deep) least = std::min(least, ReadBack(identity, space, tokens));
  EXPECT_LT(least, 12288u);
}

// RAM over an SSD of twice its size: the first fill is free, then writing follows the requests.
TEST_F(AdmissionTest, WhatIsWrittenStaysWithinTheShareOfWhatIsAskedFor) {
  cache::Options options = WithSsd(uint64_t{32} << 20);
  options.ssd_budget_bytes = uint64_t{64} << 20;
  options.segment_bytes = kMiB;
  options.ssd_write_share = 0.25;
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  const Tokens used = RandomTokens(1, 640);
  ASSERT_TRUE(Store(identity, space, used).ok());
  uint64_t stored = 0;
  for (uint64_t i = 0; stored < 6 * options.ssd_budget_bytes; ++i) {
    const Tokens tokens = RandomTokens(100 + i, 4096);
    const auto answer = Store(identity, space, tokens);
    ASSERT_TRUE(answer.ok()) << answer.status();
    stored += Counter("bytes.received") - stored;
    ReadBack(identity, space, used);
  }
  const uint64_t written = Counter("bytes.spilled") + Counter("bytes.rewritten");
  EXPECT_LE(written, options.ssd_budget_bytes + stored / 3);
  EXPECT_GE(written, options.ssd_budget_bytes / 2);
  EXPECT_GT(Counter("bytes.rewritten"), 0u);
  EXPECT_GT(Counter("admission.refused_blocks"), 0u);
  EXPECT_LT(Counter("ssd.may_write_bytes"), options.ssd_budget_bytes);
}

// One sequence that fills RAM and is being extended: refusing all of it would stop its writer.
TEST_F(AdmissionTest, TheBudgetIsOverdrawnRatherThanAWriterStopped) {
  cache::Options options = WithSsd(uint64_t{32} << 20);
  options.segment_bytes = kMiB;
  options.ssd_write_bytes_per_s = 1;
  options.ssd_write_window = std::chrono::seconds(1);
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  const Tokens deep = RandomTokens(2, 32768);
  for (size_t tokens = 2048; tokens <= deep.size(); tokens += 2048) {
    const auto stored = Store(identity, space, FirstOf(deep, tokens));
    ASSERT_TRUE(stored.ok()) << stored.status();
    ASSERT_EQ(stored->stored_tokens, 2048u);
  }
}

class DurableTest : public CacheTest {
 protected:
  absl::StatusOr<block::CommitAnswer> StoreOn(const block::SpaceIdentity& identity,
                                              block::SpaceHandle space, const Tokens& tokens,
                                              block::Durability durability) {
    auto plan = cache_->Reserve(
        session_, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
    if (!plan.ok()) return plan.status();
    for (const block::BlockPlan& block : plan->blocks) {
      if (block.state == block::BlockState::kPresent) continue;
      if (auto put = PutBlock(session_, identity, plan->reservation, tokens, block); !put.ok()) {
        return put;
      }
    }
    return cache_->Commit(session_, {.reservation = plan->reservation,
                                     .tokens = static_cast<uint32_t>(tokens.size()),
                                     .sequence_end = true,
                                     .durability = durability});
  }
  // The cache ends here without saving anything: what the next one finds was on SSD.
  uint32_t FoundByTheNext(const block::SpaceIdentity& identity, const Tokens& tokens) {
    Open(WithSsd());
    return ReadBack(identity, OpenSpace(identity), tokens);
  }
};

TEST_F(DurableTest, ACommitToSsdIsFoundAfterAPowerCutOneToRamNeedNotBe) {
  const auto identity = SmallIdentity(64, 4);
  Open(WithSsd());
  const auto space = OpenSpace(identity);
  const Tokens lost = RandomTokens(1, 200), saved = RandomTokens(2, 200);
  auto answer = StoreOn(identity, space, lost, block::Durability::kRam);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->durability, block::Durability::kRam);
  answer = StoreOn(identity, space, saved, block::Durability::kSsd);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->durability, block::Durability::kSsd);
  EXPECT_EQ(FoundByTheNext(identity, saved), 200u);
  EXPECT_EQ(FoundByTheNext(identity, lost), 0u);
}

TEST_F(DurableTest, WhatIsHereAlreadyIsSavedWithItsAncestors) {
  const auto identity = SmallIdentity(64, 4);
  Open(WithSsd());
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 330);
  ASSERT_TRUE(StoreOn(identity, space, FirstOf(tokens, 128), block::Durability::kRam).ok());
  ASSERT_TRUE(StoreOn(identity, space, tokens, block::Durability::kSsd).ok());
  EXPECT_EQ(FoundByTheNext(identity, tokens), 330u);
}

TEST_F(DurableTest, CommitsThatComeTogetherShareSegments) {
  const auto identity = SmallIdentity(64, 4);
  Open(WithSsd());
  const auto space = OpenSpace(identity);
  constexpr uint64_t kWriters = 16;
  std::vector<std::thread> writers;
  std::atomic<int> saved{0};
  for (uint64_t i = 0; i < kWriters; ++i) {
    writers.emplace_back([&, i] {
      for (uint64_t k = 0; k < 4; ++k) {
        const auto answer =
            StoreOn(identity, space, RandomTokens(100 * i + k, 70), block::Durability::kSsd);
        if (answer.ok() && answer->durability == block::Durability::kSsd) ++saved;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(saved, 64);
  EXPECT_EQ(Counter("commits.on_ssd"), 64u);
  EXPECT_LT(Counter("segments.written"), 48u);
  for (uint64_t i = 0; i < kWriters; ++i) {
    EXPECT_EQ(FoundByTheNext(identity, RandomTokens(100 * i, 70)), 70u);
  }
}

TEST_F(DurableTest, WithoutAnSsdTierTheAnswerSaysRam) {
  const auto identity = SmallIdentity(64, 4);
  Open(RamOnly());
  const auto answer =
      StoreOn(identity, OpenSpace(identity), RandomTokens(1, 100), block::Durability::kSsd);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->durability, block::Durability::kRam);
  EXPECT_EQ(answer->stored_tokens, 100u);
}

TEST_F(DurableTest, BelowTheFreeSpaceFloorNothingIsWrittenAndServingGoesOn) {
  cache::Options options = WithSsd(uint64_t{32} << 20);
  options.ssd_free_floor_bytes = uint64_t{1} << 60;
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  for (uint64_t i = 0; i < 10; ++i) {
    const Tokens tokens = RandomTokens(i, 1000);
    const auto answer = StoreOn(identity, space, tokens, block::Durability::kSsd);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->durability, block::Durability::kRam);
    EXPECT_EQ(ReadBack(identity, space, tokens), 1000u);
  }
  EXPECT_EQ(Counter("ssd.failing"), 1u);
  EXPECT_EQ(Counter("segments.written"), 0u);
}

}  // namespace
}  // namespace prefixd::testing
