// Spaces with sliding and state groups, key-only and key-prefix ones: what is stored comes back, in
// RAM, from SSD and after a restart, as far as it is right for every layer.
#include "tests/cache/mixed_fixture.h"

namespace prefixd::testing {
namespace {

using block::ShortenReason;

std::map<ShortenReason, uint32_t> Lost(const block::MatchAnswer& match) {
  std::map<ShortenReason, uint32_t> lost;
  for (const block::Shortening& shortening : match.shortened_by) {
    lost[shortening.reason] += shortening.tokens_lost;
  }
  return lost;
}

// S2-21
TEST_F(MixedTest, AnExactRepeatIsAHitOnAllButItsLastToken) {
  Open(RamOnly());
  const block::SpaceIdentity identity = MixedIdentity();
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  StoreAll(identity, space, tokens);
  const cache::Acquired acquired = Acquire(space, tokens, 99);
  EXPECT_EQ(acquired.match.restorable_tokens, 99u);
  EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), 99u);
}

TEST_F(MixedTest, AStateIsNeverTrimmed) {
  Open(RamOnly());
  const block::SpaceIdentity identity = MixedIdentity();
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(2, 100);
  const Plan plan = Reserve(space, tokens);
  ASSERT_TRUE(PutPages(identity, plan).ok());
  for (const uint32_t position : {35u, 40u, 90u}) {
    ASSERT_TRUE(PutSnapshot(identity, plan, position).ok());
  }
  ASSERT_TRUE(Commit(plan).ok());
  const std::map<uint32_t, uint32_t> expected = {{100, 90}, {89, 40}, {40, 40}, {39, 35}, {34, 0}};
  for (const auto& [limit, restorable] : expected) {
    const cache::Acquired acquired = Acquire(space, tokens, limit);
    EXPECT_EQ(acquired.match.restorable_tokens, restorable) << "at most " << limit;
    EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), restorable);
    EXPECT_EQ(Lost(acquired.match)[ShortenReason::kNoStateSnapshot], limit - restorable);
  }
  EXPECT_EQ(Counter("tokens.lost.no_state_snapshot"), 10u + 49u + 4u + 34u);
}

TEST_F(MixedTest, ALeaseTellsThePagesOfItsWindowAndSinksAndTheSnapshotAtItsEnd) {
  Open(RamOnly());
  const block::SpaceIdentity identity = MixedIdentity();
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(3, 130);
  StoreAll(identity, space, tokens);
  const cache::Acquired acquired = Acquire(space, tokens, 129);
  ASSERT_EQ(acquired.match.restorable_tokens, 129u);
  std::map<uint32_t, std::vector<bool>> there;
  for (const block::LeasedPage& page : acquired.pages) there[page.group].push_back(!page.absent());
  EXPECT_EQ(there[0], std::vector<bool>(9, true));
  // Block 0 holds the sinks; [89, 129) begins in block 5.
  EXPECT_EQ(there[1], std::vector<bool>({1, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(there[2], std::vector<bool>({true}));
  const block::LeasedPage& snapshot = acquired.pages.back();
  EXPECT_EQ(snapshot.rung, 1u);
  EXPECT_EQ(snapshot.first_token, 128u);
  EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), 129u);
}

// S2-09
TEST_F(MixedTest, AWrappedWindowIsRestorableAtItsEndAndNowhereBefore) {
  Open(RamOnly());
  block::SpaceIdentity identity = MixedIdentity();
  identity.groups.pop_back();
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(4, 160);
  Plan plan = Reserve(space, tokens);
  ASSERT_TRUE(Put(identity, plan, 1, 0, 0, 16).ok());  // the sinks
  ASSERT_TRUE(PutPages(identity, plan, 112).ok());
  ASSERT_TRUE(Commit(plan).ok());
  const cache::Acquired all = Acquire(space, tokens);
  EXPECT_EQ(all.match.restorable_tokens, 160u);
  EXPECT_EQ(FetchAndCheck(identity, all, tokens), 160u);
  const cache::Acquired shorter = Acquire(space, tokens, 150);
  EXPECT_EQ(shorter.match.restorable_tokens, 16u);
  EXPECT_EQ(Lost(shorter.match)[ShortenReason::kWindowGone], 134u);
}

TEST_F(MixedTest, KeyOnlyAndKeyPrefixGroupsComeBack) {
  Open(RamOnly());
  block::SpaceIdentity identity = SmallIdentity(16, 4);
  block::LayerGroup& key_only = identity.groups[0];
  key_only.value_source = block::ValueSource::kNone;
  key_only.value_dim = 0;
  block::LayerGroup& prefix = identity.groups[1];
  prefix.value_source = block::ValueSource::kKeyPrefix;
  prefix.value_dim = prefix.value_prefix_dim = 32;
  for (block::LayerGroup& group : identity.groups) {
    for (quant::KvFormat& format : group.ladder) format.value = format.key;
  }
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(5, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  EXPECT_EQ(ReadBack(identity, space, tokens), 100u);
  EXPECT_EQ(ReadBack(identity, space, Tokens(tokens.begin(), tokens.begin() + 37)), 37u);
}

TEST_F(MixedTest, APureStateModelKeepsItsSnapshots) {
  Open(RamOnly());
  block::SpaceIdentity identity = MixedIdentity();
  identity.groups.erase(identity.groups.begin(), identity.groups.begin() + 2);
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(6, 100);
  StoreAll(identity, space, tokens);
  EXPECT_EQ(ReadBack(identity, space, Tokens(tokens.begin(), tokens.begin() + 99)), 99u);
}

TEST_F(MixedTest, ASnapshotLargerThanASlabIsRefusedWithItsSize) {
  Open(RamOnly());
  const auto opened = cache_->OpenSpace(session_, MixedIdentity(uint64_t{1} << 30));
  EXPECT_TRUE(absl::IsInvalidArgument(opened.status()));
  EXPECT_NE(opened.status().message().find("snapshot of layer 4 has 1073741824 bytes"),
            std::string::npos)
      << opened.status();
}

TEST_F(MixedTest, SnapshotsSurviveTheBlockThatSupersedesTheirs) {
  Open(RamOnly());
  const block::SpaceIdentity identity = MixedIdentity();
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(7, 200);
  const Tokens prompt(tokens.begin(), tokens.begin() + 100);
  StoreAll(identity, space, prompt);
  const cache::Acquired reader = Acquire(space, prompt, 99);  // as it goes on, it holds the prompt
  StoreAll(identity, space, tokens, {100});
  EXPECT_EQ(ReadBack(identity, space, Tokens(tokens.begin(), tokens.begin() + 99)), 99u);
  ASSERT_TRUE(cache_->Release(session_, {.lease = reader.lease}).ok());
  EXPECT_EQ(ReadBack(identity, space, Tokens(tokens.begin(), tokens.begin() + 99)), 99u);
  EXPECT_EQ(Summary().blocks, 13u);
}

TEST_F(MixedTest, EverythingComesBackFromTheSsdAfterARestart) {
  const block::SpaceIdentity identity = MixedIdentity(100003);
  const Tokens tokens = RandomTokens(8, 200);
  Open(WithSsd());
  block::SpaceHandle space = OpenSpace(identity);
  StoreAll(identity, space, Tokens(tokens.begin(), tokens.begin() + 100));
  cache_->Flush(In(10000));
  StoreAll(identity, space, tokens, {100});
  cache_->Flush(In(10000));
  Open(WithSsd());
  space = OpenSpace(identity);
  for (const uint32_t limit : {199u, 99u}) {
    const cache::Acquired acquired = Acquire(space, tokens, limit);
    EXPECT_EQ(acquired.match.restorable_tokens, limit);
    EXPECT_GT(acquired.match.ssd_bytes, 0u);
    EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), limit);
  }
}

TEST_F(MixedTest, VerifyFindsNothingWrongAndDropsNothing) {
  const block::SpaceIdentity identity = MixedIdentity();
  const Tokens tokens = RandomTokens(8, 200);
  Open(WithSsd());
  StoreAll(identity, OpenSpace(identity), tokens, {100});
  ASSERT_EQ(cache_->Flush(In(10000)).dirty_bytes, 0u);
  Open(WithSsd());
  uint64_t cursor = 0, pages = 0;
  do {
    const cache::VerifyProgress step = cache_->Verify(cursor, 0, In(10000));
    EXPECT_EQ(step.bad + step.unreadable, 0u);
    pages += step.pages;
    cursor = step.next;
  } while (cursor != 0);
  EXPECT_GT(pages, 0u);
  const cache::Acquired acquired = Acquire(OpenSpace(identity), tokens, 199);
  EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), 199u);
}

TEST_F(MixedTest, AHintThatHasNoRoomForAllOfItBringsNothing) {
  const block::SpaceIdentity identity = MixedIdentity(uint64_t{13} << 18);  // a snapshot: 3.25 MiB
  const Tokens tokens = RandomTokens(8, 200);
  Open(WithSsd(uint64_t{64} << 20));
  StoreAll(identity, OpenSpace(identity), tokens);
  ASSERT_EQ(cache_->Flush(In(10000)).dirty_bytes, 0u);
  const auto hint = [&](uint64_t ram) {
    Open(WithSsd(ram));
    cache::Request request;
    request.space = OpenSpace(identity);
    request.tokens = tokens;
    request.max_tokens = 199;
    const auto prefetched = cache_->Prefetch(session_, request);
    EXPECT_TRUE(prefetched.ok()) << prefetched.status();
    return prefetched.ok() ? *prefetched : cache::Prefetched{};
  };
  const cache::Prefetched all = hint(uint64_t{64} << 20);
  EXPECT_EQ(all.tokens, 199u);
  EXPECT_GT(all.bytes, identity.groups.back().state_bytes);  // an eighth of the arena is more
  const cache::Prefetched none = hint(uint64_t{32} << 20);
  EXPECT_EQ(none.restorable_tokens, 199u);
  EXPECT_EQ(none.tokens, 0u);
  EXPECT_EQ(none.bytes, 0u);
}

TEST_F(MixedTest, AfterAKillSnapshotsAreThereAlsoThoseThatMovedToAnotherBlock) {
  const block::SpaceIdentity identity = MixedIdentity();
  const Tokens tokens = RandomTokens(9, 200);
  LiveAndBeKilled(Shared(), [&] {
    const block::SpaceHandle space = OpenSpace(identity);
    StoreAll(identity, space, Tokens(tokens.begin(), tokens.begin() + 100));
    StoreAll(identity, space, tokens, {100});
    return std::string();
  });
  Open(Shared());
  const block::SpaceHandle space = OpenSpace(identity);
  for (const uint32_t limit : {199u, 99u}) {
    const cache::Acquired acquired = Acquire(space, tokens, limit);
    EXPECT_EQ(acquired.match.restorable_tokens, limit);
    EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), limit);
  }
  EXPECT_EQ(Counter("check_failures"), 0u);
}

TEST_F(MixedTest, SnapshotsGoThroughStagingAndAreReadInPlace) {
  Open(Shared());
  const block::SpaceIdentity identity = MixedIdentity();
  const cache::BegunSession begun = Attach(identity, uint64_t{1} << 20);
  const auto files = MapFiles(begun);
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(10, 40);
  const Plan plan = Reserve(space, tokens);
  std::vector<cache::StagedPlace> staged;
  uint64_t offset = 0;
  const auto stage = [&](uint32_t group, uint32_t first, uint32_t rung, uint32_t count) {
    const auto page = MakePage(identity.groups[group], rung, tokens, first, count);
    std::copy(page.begin(), page.end(), files->staging() + offset);
    staged.push_back({.first_token = first, .group = group, .rung = rung, .offset = offset});
    offset += (page.size() + 127) / 128 * 128;
  };
  for (const block::BlockPlan& block : plan.reserved.blocks) {
    for (uint32_t g = 0; g < 2; ++g) stage(g, block.first_token, 0, block.tokens);
  }
  stage(2, 32, 7, 7);
  stage(2, 32, 3, 3);
  const auto committed = cache_->Commit(session_, {.reservation = plan.reserved.reservation,
                                                   .tokens = 40,
                                                   .sequence_end = true,
                                                   .ends = {},
                                                   .staged = staged,
                                                   .lease = true});
  ASSERT_TRUE(committed.ok()) << committed.status();
  for (const uint32_t limit : {39u, 35u}) {
    const cache::Acquired acquired = Acquire(space, tokens, limit);
    ASSERT_EQ(acquired.match.restorable_tokens, limit);
    CheckInPlace(identity, acquired.pages, tokens, *files);
  }
}

TEST_F(MixedTest, ASnapshotBeyondItsBlockIsRefusedWithBothNumbers) {
  const block::SpaceIdentity identity = MixedIdentity();
  Open(RamOnly());
  const Plan plan = Reserve(OpenSpace(identity), RandomTokens(12, 20));
  const auto bad_place = cache_->PutPage(session_, plan.reserved.reservation,
                                         {.group = 2,
                                          .first_token = 0,
                                          .tokens = 17,
                                          .rung = 17,
                                          .page_bytes = 5001,
                                          .xxh3 = 0,
                                          .data = {}},
                                         In(1000));
  EXPECT_NE(bad_place.message().find("a snapshot of group 2 at offset 17 of a block of 16 tokens"),
            std::string::npos)
      << bad_place;
}

}  // namespace
}  // namespace prefixd::testing
