// One session has its share of what all need, and what nobody goes on with ends.
#include <atomic>
#include <thread>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

class QuotaTest : public CacheTest {
 protected:
  // 10 KiB a page of 64 tokens.
  const block::SpaceIdentity identity_ = SmallIdentity(64, 16);

  cache::ReserveRequest PlanOf(block::SpaceHandle space, const Tokens& tokens) const {
    return {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}};
  }
  // The first `bytes` of the page of group 0 of that block.
  absl::Status PutStart(block::SessionId session, const block::ReservePlan& plan,
                        const Tokens& tokens, size_t block, uint32_t group, size_t bytes = 1) {
    const block::BlockPlan& at = plan.blocks[block];
    const std::vector<std::byte> page =
        MakePage(identity_.groups[group], 0, tokens, at.first_token, at.tokens);
    const std::span<const std::byte> data = std::span(page).first(std::min(bytes, page.size()));
    return cache_->PutPage(session, plan.reservation,
                           {.group = group,
                            .first_token = at.first_token,
                            .tokens = at.tokens,
                            .rung = 0,
                            .page_bytes = page.size(),
                            .offset = 0,
                            .xxh3 = base::Xxh3(data),
                            .data = data},
                           In(60'000));
  }
};

TEST_F(QuotaTest, T4FirstBytesOfPagesDoNotPinTheArenaNorEvictOthers) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto space = OpenSpace(identity_);
  const Tokens kept = RandomTokens(1, 640), stored = RandomTokens(2, 640);
  ASSERT_TRUE(Store(identity_, space, kept).ok());
  const auto hostile = SessionWith(identity_, "hostile");
  int begun = 0;
  absl::Status refused;
  for (uint64_t seed = 0; refused.ok() && begun < 10'000; ++seed) {
    const Tokens tokens = RandomTokens(100 + seed, 64 * 32);
    const auto plan = cache_->Reserve(hostile, PlanOf(space, tokens));
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (size_t block = 0; refused.ok() && block < plan->blocks.size(); ++block) {
      for (uint32_t group = 0; refused.ok() && group < identity_.groups.size(); ++group) {
        refused = PutStart(hostile, *plan, tokens, block, group);
        begun += refused.ok();
      }
    }
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_GT(begun, 8);
  EXPECT_LE(Counter("puts.arriving_bytes"), uint64_t{32} << 20 >> 3);
  EXPECT_GE(Counter("refused.arriving"), 1u);
  EXPECT_EQ(Counter("pages.evicted"), 0u);
  // Others go on: what is there is found, what comes is stored.
  EXPECT_EQ(ReadBack(identity_, space, kept), 640u);
  ASSERT_TRUE(Store(identity_, space, stored).ok());
  EXPECT_EQ(ReadBack(identity_, space, stored), 640u);
  cache_->EndSession(hostile);
  EXPECT_EQ(Counter("puts.arriving_bytes"), 0u);
}

TEST_F(QuotaTest, T4WholePagesThatAreNotCommittedLeaveRoomForOtherSessions) {
  Open(RamOnly(uint64_t{32} << 20));
  const auto space = OpenSpace(identity_);
  const auto hostile = SessionWith(identity_, "hostile");
  const Tokens tokens = RandomTokens(3, 64 * 200);
  const auto plan = cache_->Reserve(hostile, PlanOf(space, tokens));
  ASSERT_TRUE(plan.ok()) << plan.status();
  absl::Status refused;
  size_t taken = 0;
  for (; refused.ok() && taken < plan->blocks.size(); ++taken)
    refused = PutBlock(hostile, identity_, plan->reservation, tokens, plan->blocks[taken]);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  const Tokens stored = RandomTokens(4, 640);
  ASSERT_TRUE(Store(identity_, space, stored).ok());
  EXPECT_EQ(ReadBack(identity_, space, stored), 640u);
}

TEST_F(QuotaTest, T4AnnouncedTokensOfOneSessionLeaveRoomForOthers) {
  Open(RamOnly());
  const auto space = OpenSpace(identity_);
  const auto hostile = SessionWith(identity_, "hostile");
  absl::Status refused;
  uint64_t announced = 0;
  for (uint64_t seed = 0; refused.ok() && seed < 1000; ++seed) {
    const auto plan = cache_->Reserve(hostile, PlanOf(space, RandomTokens(seed, 20'000)));
    refused = plan.status();
    announced += refused.ok() ? 20'000 : 0;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(Counter("reservations.announced_tokens"), announced);
  EXPECT_EQ(Counter("refused.announced"), 1u);
  // As much again in tokens for everybody else, of which another may have a half.
  for (uint64_t other = 0; other < 3; ++other) {
    const auto session = SessionWith(identity_, "other");
    const auto plan = cache_->Reserve(session, PlanOf(space, RandomTokens(5000 + other, 20'000)));
    EXPECT_TRUE(plan.ok()) << plan.status();
  }
  cache_->EndSession(hostile);
  EXPECT_EQ(Counter("reservations.announced_tokens"), 60'000u);
}

TEST_F(QuotaTest, T4AReservationThatNobodyNamesForTenMinutesEnds) {
  base::FakeClock clock;
  auto options = RamOnly();
  options.clock = &clock;
  Open(options);
  const auto space = OpenSpace(identity_);
  const Tokens idle = RandomTokens(5, 640), used = RandomTokens(6, 640);
  const auto idle_plan = cache_->Reserve(session_, PlanOf(space, idle));
  const auto used_plan = cache_->Reserve(session_, PlanOf(space, used));
  ASSERT_TRUE(idle_plan.ok() && used_plan.ok());
  ASSERT_TRUE(PutStart(session_, *idle_plan, idle, 0, 0).ok());
  constexpr int64_t kMinute = 60'000'000;
  for (int minute = 0; minute < 9; ++minute) {
    clock.Advance(kMinute);
    ASSERT_TRUE(cache_->CheckReservation(session_, used_plan->reservation).ok());
  }
  EXPECT_EQ(cache_->GetStats().reservations, 2u);
  clock.Advance(kMinute);
  EXPECT_EQ(cache_->GetStats().reservations, 1u);
  EXPECT_EQ(Counter("reservations.idle_ended"), 1u);
  EXPECT_EQ(Counter("puts.arriving_bytes"), 0u);
  EXPECT_EQ(Counter("reservations.announced_tokens"), 640u);
  EXPECT_TRUE(absl::IsNotFound(PutStart(session_, *idle_plan, idle, 0, 1)));
  EXPECT_TRUE(PutStart(session_, *used_plan, used, 0, 0).ok());
  cache_.reset();  // before its clock
}

// A wait ends when whoever waits has gone, or its session has; never by a time that a slow machine
// would miss: without it these waits are an hour.
class PatienceTest : public CacheTest {
 protected:
  void SetUp() override {
    Open(RamOnly());
    space_ = OpenSpace(identity_);
    writer_ = SessionWith(identity_, "writer");
    const auto plan = cache_->Reserve(
        writer_, {.space = space_, .tokens = tokens_, .content = {}, .groups = {}, .writable = {}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    reservation_ = plan->reservation;
  }
  cache::Request Waiting() const {
    cache::Request request;
    request.space = space_;
    request.tokens = tokens_;
    request.wait_pending = std::chrono::hours(1);
    return request;
  }
  static base::Deadline InAnHour() {
    return std::chrono::steady_clock::now() + std::chrono::hours(1);
  }

  const block::SpaceIdentity identity_ = SmallIdentity();
  const Tokens tokens_ = RandomTokens(1, 64);
  block::SpaceHandle space_;
  block::SessionId writer_;
  block::ReservationId reservation_;
};

TEST_F(PatienceTest, T4AWaitForAnotherWorkerEndsWhenTheCallerGivesUp) {
  std::atomic<bool> gave_up{false};
  std::thread gives_up([&] { gave_up = true; });
  const auto acquired = cache_->Acquire(session_, Waiting(), {InAnHour(), &gave_up});
  gives_up.join();
  EXPECT_TRUE(absl::IsCancelled(acquired.status())) << acquired.status();
  EXPECT_EQ(cache_->GetStats().leases, 0u);
}

TEST_F(PatienceTest, T4AWaitForAnotherWorkerEndsWithItsSession) {
  const auto waiter = SessionWith(identity_, "waiter");
  std::thread ends([&] { cache_->EndSession(waiter); });
  const auto acquired = cache_->Acquire(waiter, Waiting(), InAnHour());
  ends.join();
  EXPECT_TRUE(!acquired.ok() || !acquired->lease);
}

TEST_F(PatienceTest, T4ACommitObeysItsDeadlineAndKeepsItsReservation) {
  const auto late = cache_->Commit(writer_, {.reservation = reservation_, .tokens = 64, .ends = {}},
                                   std::chrono::steady_clock::now() - std::chrono::seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  const std::atomic<bool> gave_up{true};
  const auto gone = cache_->Commit(writer_, {.reservation = reservation_, .tokens = 64, .ends = {}},
                                   {InAnHour(), &gave_up});
  EXPECT_TRUE(absl::IsCancelled(gone.status())) << gone.status();
  EXPECT_TRUE(cache_->CheckReservation(writer_, reservation_).ok());
}

TEST_F(PatienceTest, T4PagesOfACommitThatTimedOutAreFreedWithTheirReservation) {
  const auto plan = cache_->Reserve(
      session_, {.space = space_, .tokens = tokens_, .content = {}, .groups = {}, .writable = {}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const uint64_t before = Counter("arena.extent_bytes");
  ASSERT_TRUE(PutBlock(session_, identity_, plan->reservation, tokens_, plan->blocks[0]).ok());
  EXPECT_GT(Counter("arena.extent_bytes"), before);
  const cache::CommitRequest commit{
      .reservation = plan->reservation, .tokens = plan->blocks[0].tokens, .ends = {}};
  const base::Deadline past = std::chrono::steady_clock::now() - std::chrono::seconds(1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(cache_->Commit(session_, commit, past).status()));
  EXPECT_GT(Counter("arena.extent_bytes"), before) << "it can be tried again";
  ASSERT_TRUE(cache_->Abandon(session_, plan->reservation).ok());
  EXPECT_EQ(Counter("arena.extent_bytes"), before);
}

TEST_F(PatienceTest, T4AnEndlessPinDoesNotOverflow) {
  ASSERT_TRUE(Store(identity_, space_, tokens_).ok());
  cache::Request request;
  request.space = space_;
  request.tokens = tokens_;
  const auto pinned =
      cache_->Pin(session_, request, std::chrono::milliseconds::max(), base::Deadline::max());
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_TRUE(pinned->made);
  ASSERT_EQ(cache_->ListPins().size(), 1u);
  EXPECT_GT(cache_->ListPins()[0].left_s, 3e9);
  const auto again = cache_->Pin(session_, request, std::chrono::hours(1), InAnHour());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->made);
}

}  // namespace
}  // namespace prefixd::testing
