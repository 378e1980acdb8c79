// Commit of pages that stand in the session's staging memory.
#include "base/descriptor.h"
#include "os/memory.h"
#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {
namespace {

constexpr uint64_t kStaging = 1 << 20;

class StagingTest : public SharedCacheTest {
 protected:
  void SetUp() override {
    Open(Shared());
    begun_ = Attach(identity_, kStaging);
    files_ = MapFiles(begun_);
    space_ = OpenSpace(identity_);
  }
  void TearDown() override {
    files_.reset();
    SharedCacheTest::TearDown();
  }
  block::ReservePlan Plan(const Tokens& tokens, block::SessionId session = {}) {
    auto plan = cache_->Reserve(
        session ? session : session_,
        {.space = space_, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : block::ReservePlan{};
  }
  // Writes what the plan wants into staging, page behind page.
  std::vector<cache::StagedPlace> Write(const block::ReservePlan& plan, const Tokens& tokens,
                                        std::byte* staging) {
    std::vector<cache::StagedPlace> places;
    uint64_t offset = 0;
    for (const block::BlockPlan& block : plan.blocks) {
      for (uint32_t g = 0; g < identity_.groups.size(); ++g) {
        if (block.state == block::BlockState::kPresent) continue;
        const auto page = MakePage(identity_.groups[g], 0, tokens, block.first_token, block.tokens);
        EXPECT_LE(offset + page.size(), kStaging);
        std::memcpy(staging + offset, page.data(), page.size());
        places.push_back(
            {.first_token = block.first_token, .group = g, .rung = 0, .offset = offset});
        offset += base::AlignUp(page.size(), 128);
      }
    }
    return places;
  }
  cache::CommitRequest Whole(const block::ReservePlan& plan, const Tokens& tokens,
                             std::vector<cache::StagedPlace> places) {
    return {.reservation = plan.reservation,
            .tokens = static_cast<uint32_t>(tokens.size()),
            .sequence_end = true,
            .ends = {},
            .staged = std::move(places),
            .lease = true};
  }

  const block::SpaceIdentity identity_ = SmallIdentity();
  const Tokens tokens_ = RandomTokens(1, 100);
  cache::BegunSession begun_;
  std::unique_ptr<MappedFiles> files_;
  block::SpaceHandle space_;
};

TEST_F(StagingTest, StagedPagesAreStoredAndTheWriterReadsThemInTheArena) {
  const auto plan = Plan(tokens_);
  auto answer =
      cache_->Commit(session_, Whole(plan, tokens_, Write(plan, tokens_, files_->staging())));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->stored_tokens, 100u);
  ASSERT_TRUE(answer->lease);
  EXPECT_EQ(answer->first_block, 0u);
  ASSERT_EQ(answer->pages.size(), 2u * 7);
  std::memset(files_->staging(), 0xee, kStaging);  // nothing of it is read any more
  CheckInPlace(identity_, answer->pages, tokens_, *files_);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 100u);
  EXPECT_EQ(Counter("bytes.staged"), Counter("bytes.received"));
  ASSERT_TRUE(cache_->Release(session_, {.lease = answer->lease}).ok());
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
}

TEST_F(StagingTest, ASequenceIsCommittedInPartsAndEachPartLeasesItsOwnPages) {
  const auto plan = Plan(tokens_);
  const auto places = Write(plan, tokens_, files_->staging());
  cache::CommitRequest part = Whole(plan, tokens_, {places.begin(), places.begin() + 4});
  part.tokens = 32;
  auto first = cache_->Commit(session_, part);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->pages.size(), 4u);
  auto rest = cache_->Commit(session_, Whole(plan, tokens_, {places.begin() + 4, places.end()}));
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_EQ(rest->first_block, 2u);
  EXPECT_EQ(rest->pages.size(), 10u);
  CheckInPlace(identity_, first->pages, tokens_, *files_);
  CheckInPlace(identity_, rest->pages, tokens_, *files_);
}

// A5 bad input: nor its size, where the system does not fix it.
TEST_F(StagingTest, StagingThatItsWorkerMadeShorterIsRefusedAndHurtsNobody) {
  if (os::SealsMemory()) GTEST_SKIP() << "the system fixes the size";
  const cache::BegunSession begun = Attach(identity_, kStaging);
  const auto files = cache_->OpenFiles(begun.key, PeerOf(getpid()));
  ASSERT_TRUE(files.ok()) << files.status();
  const base::Descriptor staging(files->staging), arena(files->arena), lock(files->lock);
  const auto plan = Plan(tokens_, begun.session);
  std::vector<std::byte> written(kStaging);
  const auto places = Write(plan, tokens_, written.data());
  ASSERT_EQ(ftruncate(staging.get(), 0), 0);
  const auto answer = cache_->Commit(begun.session, Whole(plan, tokens_, places));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->stored_tokens, 0u);
  ASSERT_EQ(answer->blocks.size(), 1u);
  EXPECT_EQ(answer->blocks[0].result, block::StoreResult::kRefused);
  EXPECT_NE(answer->blocks[0].reason.find("made it shorter"), std::string::npos)
      << answer->blocks[0].reason;
  EXPECT_EQ(Counter("arena.extent_bytes"), 0u);
}

// A5 bad input: the daemon trusts no offset, no count and no byte of a worker.
TEST_F(StagingTest, BadPlacesAreRefusedTakeNoRoomAndHurtNobody) {
  const auto plan = Plan(tokens_);
  const auto good = Write(plan, tokens_, files_->staging());
  const auto refused = [&](const cache::StagedPlace& bad, const std::string& word) {
    auto places = good;
    places.push_back(bad);
    const absl::Status status = cache_->Commit(session_, Whole(plan, tokens_, places)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(std::string(status.message()).find(word), std::string::npos) << status;
    EXPECT_EQ(Counter("arena.extent_bytes"), 0u);
  };
  refused(good[0], "comes twice");
  for (uint64_t offset : {uint64_t{64}, kStaging, kStaging - 128, ~uint64_t{0}, ~uint64_t{127}}) {
    auto places = good;
    places[3].offset = offset;
    EXPECT_EQ(cache_->Commit(session_, Whole(plan, tokens_, places)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  refused({.first_token = 8, .group = 0, .rung = 0, .offset = 0}, "starts at token 8");
  refused({.first_token = 4000000000, .group = 0, .rung = 0, .offset = 0}, "starts at token");
  refused({.first_token = 0, .group = 7, .rung = 0, .offset = 0}, "group 7");
  refused({.first_token = 0, .group = 0, .rung = 3, .offset = 0}, "rung 3");
  // A session without staging.
  const auto other = SessionWith(identity_, "other");
  const auto theirs = Plan(tokens_, other);
  EXPECT_EQ(cache_->Commit(other, Whole(theirs, tokens_, good)).status().code(),
            absl::StatusCode::kInvalidArgument);
  // After all this the good ones are taken.
  auto answer = cache_->Commit(session_, Whole(plan, tokens_, good));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->stored_tokens, 100u);
}

TEST_F(StagingTest, AMissingPageRefusesItsBlockAndKeepsWhatCameBefore) {
  const auto plan = Plan(tokens_);
  auto places = Write(plan, tokens_, files_->staging());
  places.erase(places.begin() + 7);  // group 1 of the block at 48
  auto answer = cache_->Commit(session_, Whole(plan, tokens_, places));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->stored_tokens, 48u);
  ASSERT_EQ(answer->blocks.size(), 4u);
  EXPECT_EQ(answer->blocks[3].result, block::StoreResult::kRefused);
  EXPECT_EQ(ReadBack(identity_, space_, tokens_), 48u);
  EXPECT_EQ(cache_->GetStats().reservations, 0u);
}

TEST_F(StagingTest, TwoWritersOfOneSequenceBothSucceedAndReadTheSamePages) {
  const auto other = Attach(identity_, kStaging);
  const auto other_files = MapFiles(other);
  const auto mine = Plan(tokens_, begun_.session);
  const auto theirs = Plan(tokens_, other.session);
  EXPECT_EQ(theirs.blocks[0].state, block::BlockState::kPending);
  auto first =
      cache_->Commit(begun_.session, Whole(mine, tokens_, Write(mine, tokens_, files_->staging())));
  auto second = cache_->Commit(
      other.session, Whole(theirs, tokens_, Write(theirs, tokens_, other_files->staging())));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->stored_tokens, 100u);
  EXPECT_EQ(second->duplicate_tokens, 100u);
  ASSERT_EQ(second->pages.size(), first->pages.size());
  for (size_t i = 0; i < first->pages.size(); ++i)
    EXPECT_EQ(first->pages[i].offset, second->pages[i].offset);
  CheckInPlace(identity_, second->pages, tokens_, *other_files);
}

// A worker that goes on writing while the daemon copies: its own page is whatever it is, nobody
// else's is touched, and what was stored passes its check.
TEST_F(StagingTest, AWriterThatScribblesDuringCommitStoresWhatWasCopied) {
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    for (uint8_t value = 0; !stop; ++value) std::memset(files_->staging(), value, kStaging);
  });
  const Tokens kept = RandomTokens(2, 64);
  ASSERT_TRUE(Store(identity_, space_, kept).ok());
  for (uint64_t i = 0; i < 20; ++i) {
    const Tokens tokens = RandomTokens(100 + i, 100);
    const auto plan = Plan(tokens);
    std::vector<cache::StagedPlace> places;
    for (const auto& block : plan.blocks) {
      for (uint32_t g = 0; g < 2; ++g) {
        places.push_back({.first_token = block.first_token, .group = g, .rung = 0, .offset = 0});
      }
    }
    auto answer = cache_->Commit(session_, Whole(plan, tokens, places));
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(answer->stored_tokens, 100u);
    ASSERT_TRUE(cache_->Release(session_, {.lease = answer->lease}).ok());
  }
  stop = true;
  scribbler.join();
  EXPECT_EQ(ReadBack(identity_, space_, kept), 64u);
  files_.reset();
  Open(Shared());  // every check is looked at again
  OpenSpace(identity_);
  EXPECT_TRUE(Until([this] { return Counter("verified.everything") == 1; }));
  EXPECT_EQ(Counter("check_failures"), 0u);
}

TEST_F(StagingTest, StagingComesFromOneBudgetedPool) {
  cache::SessionOptions options;
  options.wants_arena = true;
  options.staging_bytes = uint64_t{1} << 30;
  uint64_t granted = begun_.staging_bytes;
  for (int i = 0; i < 20; ++i) granted += cache_->BeginSession(options).staging_bytes;
  EXPECT_LE(granted, (uint64_t{64} << 20) / 16);
  EXPECT_GT(Counter("sessions.without_staging"), 0u);
}

}  // namespace
}  // namespace prefixd::testing
