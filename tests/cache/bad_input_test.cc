// A5 bad input, seen from the cache: each call ends in a clear error and leaves nothing behind.
#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

class BadInputTest : public CacheTest {
 protected:
  void SetUp() override {
    Open(RamOnly());
    space_ = OpenSpace(identity_);
    auto plan = cache_->Reserve(
        session_,
        {.space = space_, .tokens = tokens_, .content = {}, .groups = {}, .writable = {}});
    ASSERT_TRUE(plan.ok());
    plan_ = *plan;
    page_ = MakePage(identity_.groups[0], 0, tokens_, 0, 16);
    piece_ = {.group = 0,
              .first_token = 0,
              .tokens = 16,
              .rung = 0,
              .page_bytes = page_.size(),
              .offset = 0,
              .xxh3 = base::Xxh3(page_),
              .data = page_};
  }
  void ExpectRefused(const cache::PagePiece& piece, const std::string& word) {
    const absl::Status status = cache_->PutPage(session_, plan_.reservation, piece, In(1000));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status;
    EXPECT_EQ(Counter("arena.extent_bytes"), 0u);
  }
  block::SpaceIdentity identity_ = SmallIdentity();
  block::SpaceHandle space_;
  Tokens tokens_ = RandomTokens(1, 40);
  block::ReservePlan plan_;
  std::vector<std::byte> page_;
  cache::PagePiece piece_;
};

TEST_F(BadInputTest, WrongSizesAreRefusedBeforeAnyRoomIsTaken) {
  cache::PagePiece piece = piece_;
  piece.page_bytes -= 128;
  ExpectRefused(piece, "the layout wants");
  piece = piece_;
  piece.tokens = 15;
  ExpectRefused(piece, "the plan says 16");
  piece = piece_;
  piece.first_token = 8;
  ExpectRefused(piece, "no block of the reservation starts at token 8");
  piece = piece_;
  piece.group = 9;
  ExpectRefused(piece, "group 9");
  piece = piece_;
  piece.rung = 1;
  ExpectRefused(piece, "its ladder has 1");
  piece = piece_;
  piece.xxh3 ^= 1;
  ExpectRefused(piece, "damaged");
  piece = piece_;
  piece.offset = 64;
  ExpectRefused(piece, "pieces");
}

TEST_F(BadInputTest, PiecesOutOfOrderAreRefused) {
  cache::PagePiece half = piece_;
  half.data = std::span<const std::byte>(page_).subspan(128);
  half.offset = 128;
  half.xxh3 = base::Xxh3(half.data);
  ExpectRefused(half, "out of order");
}

TEST_F(BadInputTest, APieceThatLeavesAGapOrComesTwiceIsRefused) {
  const std::span<const std::byte> whole(page_);
  const auto put = [&](uint64_t offset, size_t bytes) {
    cache::PagePiece piece = piece_;
    piece.offset = offset;
    piece.data = whole.subspan(offset, bytes);
    piece.xxh3 = base::Xxh3(piece.data);
    return cache_->PutPage(session_, plan_.reservation, piece, In(1000)).code();
  };
  EXPECT_EQ(put(0, 128), absl::StatusCode::kOk);
  EXPECT_EQ(put(256, 128), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(0, 128), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(put(128, page_.size() - 128), absl::StatusCode::kOk);
}

TEST_F(BadInputTest, AReservationNeedsARungInEachOfItsGroups) {
  cache::ReserveRequest request{.space = space_,
                                .tokens = RandomTokens(77, 40),
                                .content = {},
                                .groups = {},
                                .writable = {1, 0}};
  ASSERT_EQ(identity_.groups.size(), 2u);
  const absl::Status refused = cache_->Reserve(session_, request).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "reserve: no usable rung in group 1");
  request.groups = {0};
  EXPECT_TRUE(cache_->Reserve(session_, request).ok()) << "the other group is not asked for";
}

TEST_F(BadInputTest, APageThatArrivedDamagedMayBeSentAgain) {
  const auto plan = cache_->Reserve(session_, {.space = space_,
                                               .tokens = tokens_,
                                               .content = {},
                                               .groups = {},
                                               .writable = {},
                                               .seeds = true});
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const block::BlockPlan& block : plan->blocks) {
    for (uint32_t group = 0; group < identity_.groups.size(); ++group) {
      const std::vector<std::byte> page =
          MakePage(identity_.groups[group], 0, tokens_, block.first_token, block.tokens);
      std::vector<std::byte> damaged = page;
      damaged.back() ^= std::byte{1};
      cache::PagePiece piece{.group = group,
                             .first_token = block.first_token,
                             .tokens = block.tokens,
                             .page_bytes = page.size(),
                             .xxh3 = base::Xxh3(page, block.seeds[group]),
                             .sum_seed = block.seeds[group],
                             .data = damaged};
      EXPECT_EQ(cache_->PutPage(session_, plan->reservation, piece, In(1000)).code(),
                absl::StatusCode::kInvalidArgument);
      piece.data = page;
      EXPECT_TRUE(cache_->PutPage(session_, plan->reservation, piece, In(1000)).ok());
    }
  }
  const auto answer = cache_->Commit(
      session_, {.reservation = plan->reservation, .tokens = 40, .sequence_end = true, .ends = {}});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->stored_tokens, 40u);
  EXPECT_EQ(FetchAndCheck(identity_, Acquire(space_, tokens_), tokens_), 40u);
}

TEST_F(BadInputTest, ACommitOfBlocksThatNeverCameIsRefusedWithTheReason) {
  auto answer = cache_->Commit(
      session_, {.reservation = plan_.reservation, .tokens = 40, .sequence_end = true, .ends = {}});
  ASSERT_TRUE(answer.ok());
  ASSERT_EQ(answer->blocks.size(), 1u);
  EXPECT_EQ(answer->blocks[0].result, block::StoreResult::kRefused);
  EXPECT_NE(answer->blocks[0].reason.find("no whole page of group 0"), std::string::npos);
  EXPECT_EQ(Summary().stored_tokens, 0u);
}

TEST_F(BadInputTest, CommitAtATokenInsideABlockIsRefused) {
  EXPECT_EQ(
      cache_
          ->Commit(
              session_,
              {.reservation = plan_.reservation, .tokens = 20, .sequence_end = true, .ends = {}})
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      cache_
          ->Commit(
              session_,
              {.reservation = plan_.reservation, .tokens = 16, .sequence_end = true, .ends = {17}})
          .status()
          .code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(BadInputTest, UnknownIdsAreNotFound) {
  cache::Request request;
  request.tokens = tokens_;
  request.space = block::SpaceHandle{999};
  EXPECT_EQ(cache_->Match(session_, request).status().code(), absl::StatusCode::kNotFound);
  request.space = space_;
  EXPECT_EQ(cache_->Acquire(block::SessionId{5}, request, In(100)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->PutPage(session_, block::ReservationId{77}, piece_, In(100)).code(),
            absl::StatusCode::kNotFound);
  const auto other =
      SessionWith(identity_, "other");  // somebody else's reservation is as good as unknown
  EXPECT_EQ(cache_->PutPage(other, plan_.reservation, piece_, In(100)).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->Abandon(other, plan_.reservation).code(), absl::StatusCode::kNotFound);
}

// T5: nobody asks without a session, and none about a space that it did not open.
TEST_F(BadInputTest, OnlyASessionThatOpenedTheSpaceMatches) {
  cache::Request request;
  request.space = space_;
  request.tokens = tokens_;
  const std::vector<cache::Request> both = {request, request};
  EXPECT_TRUE(cache_->Match(session_, request).ok());
  const block::SessionId stranger = cache_->BeginSession("stranger");
  for (const block::SessionId session : {block::SessionId{}, stranger}) {
    const char* why = session ? "is not open in this session" : "match: unknown session";
    const absl::Status one = cache_->Match(session, request).status();
    const absl::Status set = cache_->MatchSet(session, both).status();
    for (const absl::Status& status : {one, set}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
      EXPECT_NE(status.ToString().find(why), std::string::npos) << status;
    }
  }
}

TEST_F(BadInputTest, EmptyAndOversizedTokenListsAreRefused) {
  cache::Request request;
  request.space = space_;
  EXPECT_EQ(cache_->Match(session_, request).status().code(), absl::StatusCode::kInvalidArgument);
  request.tokens.assign(cache::kMaxTokens + 1, 7);
  EXPECT_EQ(cache_->Acquire(session_, request, In(100)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Announcing is not free: it is bounded by the index's share, and Abandon gives it back.
TEST_F(BadInputTest, TurnEndsAndEndsAreCounted) {
  cache::ReserveRequest request{
      .space = space_, .tokens = tokens_, .content = {}, .groups = {}, .writable = {}};
  request.turn_ends.assign(4097, 1);
  EXPECT_EQ(cache_->Reserve(session_, request).status(),
            absl::InvalidArgumentError("reserve: 4097 turn ends, limit 4096"));
  request.turn_ends.pop_back();
  const auto plan = cache_->Reserve(session_, request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto size = static_cast<uint32_t>(tokens_.size());
  EXPECT_EQ(cache_
                ->Commit(session_, {.reservation = plan->reservation,
                                    .tokens = size,
                                    .ends = std::vector<uint32_t>(4097, 1)})
                .status(),
            absl::InvalidArgumentError("commit: 4097 ends, limit 4096"));
}

TEST_F(BadInputTest, ReservationsWithoutEndAreRefusedAndHurtNobody) {
  const Tokens huge(100000, 7);
  const cache::ReserveRequest request{
      .space = space_, .tokens = huge, .content = {}, .groups = {}, .writable = {}};
  std::vector<block::ReservationId> held;
  absl::Status refused;
  while (refused.ok() && held.size() < 100) {
    auto plan = cache_->Reserve(session_, request);
    refused = plan.status();
    if (plan.ok()) held.push_back(plan->reservation);
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const block::NamedCount& part : cache_->GetStats().ram_parts) {
    EXPECT_TRUE(part.name != "index" || part.value <= uint64_t{4} << 20) << part.value;
  }
  const auto other = SessionWith(identity_, "other");
  EXPECT_TRUE(Store(identity_, space_, RandomTokens(9, 100), other).ok());
  for (block::ReservationId id : held) EXPECT_TRUE(cache_->Abandon(session_, id).ok());
  EXPECT_TRUE(cache_->Reserve(session_, request).ok());
}

TEST_F(BadInputTest, ASpaceWithoutWeightsDigestNeedsTrust) {
  auto identity = SmallIdentity();
  identity.weights_digest = {};
  EXPECT_EQ(cache_->OpenSpace(session_, identity).status().code(),
            absl::StatusCode::kInvalidArgument);
  cache::Options options = RamOnly();
  options.trust_model_names = true;
  Open(options);
  EXPECT_TRUE(cache_->OpenSpace(session_, identity).ok());
}

TEST_F(BadInputTest, APageLargerThanASlabIsRefusedAtOpen) {
  auto identity = SmallIdentity(
      128, 2, {quant::RawFormat(quant::Dtype::kF32), quant::RawFormat(quant::Dtype::kF32)});
  identity.groups[0].kv_heads = 512;
  const auto status = cache_->OpenSpace(session_, identity).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("a slab of the RAM tier"), std::string::npos)
      << status;
}

TEST_F(BadInputTest, ATooSmallBudgetIsRefused) {
  EXPECT_EQ(cache::Cache::Open(RamOnly(1 << 20)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// NaN payloads are opaque bytes: stored and given back as they are (documented in the wire
// contract).
TEST_F(BadInputTest, NanPayloadsComeBackAsTheyWere) {
  std::vector<std::byte> nan(page_.size(), std::byte{0xff});
  cache::PagePiece piece = piece_;
  piece.data = nan;
  piece.xxh3 = base::Xxh3(nan);
  Tokens tokens(tokens_.begin(), tokens_.begin() + 16);
  auto plan = cache_->Reserve(
      session_, {.space = space_, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
  ASSERT_TRUE(plan.ok());
  for (uint32_t g : {0u, 1u}) {
    piece.group = g;
    ASSERT_TRUE(cache_->PutPage(session_, plan->reservation, piece, In(1000)).ok());
  }
  ASSERT_TRUE(
      cache_
          ->Commit(
              session_,
              {.reservation = plan->reservation, .tokens = 16, .sequence_end = true, .ends = {}})
          .ok());
  Collector got;
  const auto acquired = Acquire(space_, tokens);
  ASSERT_TRUE(cache_
                  ->Fetch(session_, {.lease = acquired.lease, .groups = {}, .from_token = 0},
                          In(1000), &got)
                  .ok());
  EXPECT_TRUE((got.pages[{0, 0}] == nan));
}

}  // namespace
}  // namespace prefixd::testing
