// Storing, matching and reading back through the whole cache in RAM.
#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

using StoreTest = CacheTest;

TEST_F(StoreTest, WhatWasCommittedComesBackByteForByte) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  auto stored = Store(identity, space, tokens);
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->stored_tokens, 100u);
  const auto acquired = Acquire(space, tokens);
  EXPECT_EQ(acquired.match.kind, block::MatchKind::kExact);
  EXPECT_EQ(acquired.match.restorable_tokens, 100u);
  EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), 100u);
}

TEST_F(StoreTest, EveryMatchShapeCutsToTheToken) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens stored = RandomTokens(2, 100);
  ASSERT_TRUE(Store(identity, space, stored).ok());
  struct Shape {
    size_t keep, extra;
    block::MatchKind kind;
    uint32_t tokens;
  };
  for (const Shape& shape :
       {Shape{44, 0, block::MatchKind::kSupersequence, 44},
        Shape{100, 30, block::MatchKind::kPrefix, 100}, Shape{57, 30, block::MatchKind::kLcp, 57},
        Shape{100, 0, block::MatchKind::kExact, 100}, Shape{0, 40, block::MatchKind::kNone, 0}}) {
    Tokens request(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(shape.keep));
    for (size_t i = 0; i < shape.extra; ++i) request.push_back(70000 + static_cast<Token>(i));
    const auto acquired = Acquire(space, request);
    EXPECT_EQ(acquired.match.kind, shape.kind);
    EXPECT_EQ(acquired.match.restorable_tokens, shape.tokens);
    EXPECT_EQ(FetchAndCheck(identity, acquired, request), shape.tokens);
  }
}

// A2 seed-story: 53 tokens, then the same to 253, then 44 sharing 17, then those to 194.
TEST_F(StoreTest, SeedStoryHoldsItsTokensEndsAndBytes) {
  Open(RamOnly(uint64_t{256} << 20));
  const auto identity = Qwen3Identity();
  ASSERT_EQ(block::PayloadBytesPerToken(identity), 60928u);
  const auto space = OpenSpace(identity);
  const Tokens first = RandomTokens(3, 253);
  Tokens second(first.begin(), first.begin() + 17);
  for (Token token : RandomTokens(4, 177)) second.push_back(60000 + token);
  const std::vector<std::pair<Tokens, uint64_t>> steps = {
      {Tokens(first.begin(), first.begin() + 53), 53},
      {first, 253},
      {Tokens(second.begin(), second.begin() + 44), 297},
      {second, 447}};
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [tokens, held] = steps[i];
    const auto acquired = Acquire(space, tokens);
    if (i == 2) {
      EXPECT_EQ(acquired.match.restorable_tokens, 17u);
    }
    EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), acquired.match.restorable_tokens);
    if (acquired.lease) {
      ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
    }
    ASSERT_TRUE(Store(identity, space, tokens).ok());
    EXPECT_EQ(Summary().stored_tokens, held);
  }
  EXPECT_EQ(Summary().ends, 4u);
  EXPECT_EQ(Summary().ram_payload_bytes, 27234816u);
  for (const auto& [tokens, held] : steps)
    EXPECT_EQ(ReadBack(identity, space, tokens), tokens.size());
}

TEST_F(StoreTest, OneFieldDifferentIsAnotherSpaceAndSaysWhich) {
  Open(RamOnly());
  auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(5, 64);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  identity.groups[0].ladder[0].value.bits = 8;
  auto opened = cache_->OpenSpace(session_, identity);
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(opened->created);
  ASSERT_EQ(opened->differing_fields.size(), 1u);
  EXPECT_EQ(opened->differing_fields[0], "layer 0, format 0, value.bits");
  EXPECT_EQ(Acquire(opened->space, tokens).match.matched_tokens, 0u);
}

TEST_F(StoreTest, TwoWritersOfOneSequenceBothSucceed) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(6, 80);
  const auto other = SessionWith(identity, "other");
  const cache::ReserveRequest request{
      .space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}};
  auto mine = cache_->Reserve(session_, request);
  auto theirs = cache_->Reserve(other, request);
  ASSERT_TRUE(mine.ok() && theirs.ok());
  EXPECT_EQ(mine->blocks[0].state, block::BlockState::kYours);
  EXPECT_EQ(theirs->blocks[0].state, block::BlockState::kPending);
  for (const auto& block : mine->blocks)
    ASSERT_TRUE(PutBlock(session_, identity, mine->reservation, tokens, block).ok());
  for (const auto& block : theirs->blocks)
    ASSERT_TRUE(PutBlock(other, identity, theirs->reservation, tokens, block).ok());
  auto first = cache_->Commit(
      session_, {.reservation = mine->reservation, .tokens = 80, .sequence_end = true, .ends = {}});
  auto second = cache_->Commit(
      other, {.reservation = theirs->reservation, .tokens = 80, .sequence_end = true, .ends = {}});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->stored_tokens, 80u);
  EXPECT_EQ(second->duplicate_tokens, 80u);
  EXPECT_EQ(Summary().stored_tokens, 80u);
  EXPECT_EQ(Summary().ends, 1u);
  EXPECT_EQ(ReadBack(identity, space, tokens), 80u);
}

TEST_F(StoreTest, AReservationSaysThatItsTokensArePending) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(7, 80);
  ASSERT_TRUE(
      cache_
          ->Reserve(session_,
                    {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}})
          .ok());
  const auto other = SessionWith(identity, "other");
  cache::Request request;
  request.space = space;
  request.tokens = tokens;
  auto acquired = cache_->Acquire(other, request, In(1000));
  ASSERT_TRUE(acquired.ok());
  EXPECT_EQ(acquired->match.restorable_tokens, 0u);
  EXPECT_EQ(acquired->match.pending_tokens, 80u);
}

TEST_F(StoreTest, AnEndedSessionLeavesNothingBehind) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(8, 80);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto other = SessionWith(identity, "dies");
  cache::Request request;
  request.space = space;
  request.tokens = tokens;
  ASSERT_TRUE(cache_->Acquire(other, request, In(1000)).ok());
  Tokens longer = tokens;
  longer.resize(200, 9);
  auto plan = cache_->Reserve(
      other, {.space = space, .tokens = longer, .content = {}, .groups = {}, .writable = {}});
  ASSERT_TRUE(plan.ok());
  const uint64_t before = Counter("arena.extent_bytes");
  ASSERT_TRUE(PutBlock(other, identity, plan->reservation, longer, plan->blocks.back()).ok());
  EXPECT_GT(Counter("arena.extent_bytes"), before);
  EXPECT_EQ(cache_->GetStats().leases, 1u);
  cache_->EndSession(other);
  const block::Stats stats = cache_->GetStats();
  EXPECT_EQ(stats.leases, 0u);
  EXPECT_EQ(stats.reservations, 0u);
  EXPECT_EQ(stats.leased_bytes, 0u);
  EXPECT_EQ(Counter("arena.extent_bytes"), before);
  EXPECT_EQ(cache_->Acquire(other, request, In(1000)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, LeasedPagesSurviveEvictionPressureAndClear) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto identity = SmallIdentity(64, 8);
  const auto space = OpenSpace(identity);
  const Tokens kept = RandomTokens(9, 640);
  ASSERT_TRUE(Store(identity, space, kept).ok());
  const auto acquired = Acquire(space, kept);
  ASSERT_EQ(acquired.match.restorable_tokens, 640u);
  for (uint64_t i = 0; i < 40; ++i)
    ASSERT_TRUE(Store(identity, space, RandomTokens(100 + i, 640)).ok());
  EXPECT_GT(Counter("pages.evicted"), 0u);
  ASSERT_TRUE(cache_->Clear(nullptr).ok());
  EXPECT_EQ(Acquire(space, kept).match.matched_tokens, 0u);
  EXPECT_EQ(FetchAndCheck(identity, acquired, kept), 640u);
}

TEST_F(StoreTest, AReleasedLeaseIsNotFetchedFrom) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(10, 40);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
  Collector got;
  EXPECT_EQ(cache_
                ->Fetch(session_, {.lease = acquired.lease, .groups = {}, .from_token = 0},
                        In(1000), &got)
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->Release(session_, {.lease = acquired.lease}).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(StoreTest, ALeaseBelongsToItsSession) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(10, 40);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  const auto other = SessionWith(identity, "other");
  Collector got;
  const cache::FetchRequest fetch{.lease = acquired.lease, .groups = {}, .from_token = 0};
  EXPECT_EQ(cache_->Fetch(other, fetch, In(1000), &got).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(got.pages.empty());
  EXPECT_EQ(cache_->Release(other, {.lease = acquired.lease}).code(), absl::StatusCode::kNotFound);
  cache_->EndSession(other);
  EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), 40u);
}

// What is kept of a page is sent where it was asked for and says something of these very bytes.
TEST_F(StoreTest, OnlyWholePagesComeWithASeededSumAndOnlyOnRequest) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(11, 64);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, Tokens(tokens.begin(), tokens.begin() + 40));
  for (const bool asked : {false, true}) {
    Collector got;  // compares every sum
    ASSERT_TRUE(
        cache_
            ->Fetch(session_,
                    {.lease = acquired.lease, .groups = {}, .from_token = 0, .seeded_sums = asked},
                    In(1000), &got)
            .ok());
    EXPECT_EQ(got.pages.size(), 6u);
    EXPECT_EQ(got.seeded, asked ? 4 : 0);  // the third block is cut in both groups
  }
}

TEST_F(StoreTest, FetchFromATokenSendsItsBlockAndWhatFollows) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(11, 70);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  Collector got;
  ASSERT_TRUE(cache_
                  ->Fetch(session_, {.lease = acquired.lease, .groups = {1}, .from_token = 37},
                          In(1000), &got)
                  .ok());
  ASSERT_EQ(got.pages.size(), 3u);  // blocks at 32, 48, 64 of group 1
  EXPECT_EQ(got.pages.begin()->first, (std::pair<uint32_t, uint32_t>{1, 32}));
}

TEST_F(StoreTest, StatsCountTokensByKindAndSayWhatWasSaved) {
  Open(RamOnly());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(12, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens, 99);
  EXPECT_EQ(acquired.match.kind, block::MatchKind::kExact);
  EXPECT_EQ(acquired.match.restorable_tokens, 99u);
  ASSERT_EQ(FetchAndCheck(identity, acquired, tokens), 99u);
  ASSERT_TRUE(cache_
                  ->Release(session_, {.lease = acquired.lease,
                                       .used_tokens = 99,
                                       .first_token_us = 5000,
                                       .load_us = 1000,
                                       .prefill_tokens_per_s = 1000})
                  .ok());
  EXPECT_EQ(Counter("tokens.requested"), 100u);
  EXPECT_EQ(Counter("tokens.matched"), 100u);
  EXPECT_EQ(Counter("tokens.restorable"), 99u);
  EXPECT_EQ(Counter("tokens.restorable.exact"), 99u);
  EXPECT_EQ(Counter("tokens.delivered"), 99u);
  EXPECT_EQ(Counter("tokens.delivered.ram"), 99u);
  EXPECT_EQ(Counter("tokens.used"), 99u);
  EXPECT_EQ(Counter("shortened.max_tokens"), 1u);
  EXPECT_NEAR(cache_->GetStats().seconds_saved, 0.098, 1e-9);
}

}  // namespace
}  // namespace prefixd::testing
