// Sessions over a shared arena: who may read what, for how long, and what ends with whom.
#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {
namespace {

using SessionTest = SharedCacheTest;

TEST_F(SessionTest, ALeasedPageStandsWhereTheAnswerSaysByteForByte) {
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto begun = Attach(identity);
  const auto files = MapFiles(begun);
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  ASSERT_EQ(acquired.match.restorable_tokens, 100u);
  ASSERT_EQ(acquired.pages.size(), 2u * 7);
  for (const auto& page : acquired.pages) EXPECT_TRUE(page.in_ram);
  CheckInPlace(identity, acquired.pages, tokens, *files);
  EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), 100u);  // Fetch serves them too
}

TEST_F(SessionTest, ATableTellsTheSamePlaces) {
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto begun = Attach(identity);
  const auto files = MapFiles(begun);
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto listed = Acquire(space, tokens);
  cache::Request request;
  request.space = space;
  request.tokens = tokens;
  request.table = true;
  const auto told = cache_->Acquire(session_, request, In(10000));
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->match.restorable_tokens, 100u);
  EXPECT_EQ(told->match.ram_bytes, listed.match.ram_bytes);
  EXPECT_TRUE(told->pages.empty());
  ASSERT_EQ(told->table.offsets.size(), listed.pages.size());
  for (size_t i = 0; i < listed.pages.size(); ++i) {
    EXPECT_EQ(told->table.offsets[i], listed.pages[i].offset) << i;
  }
  EXPECT_EQ(FetchAndCheck(identity, *told, tokens), 100u);
  // Who told of no mapping is told of no places.
  const auto other = cache_->BeginSession("far");
  ASSERT_TRUE(cache_->OpenSpace(other, identity).ok());
  const auto far = cache_->Acquire(other, request, In(10000));
  ASSERT_TRUE(far.ok()) << far.status();
  EXPECT_TRUE(far->table.groups.empty());
  EXPECT_EQ(far->pages.size(), listed.pages.size());
}

TEST_F(SessionTest, ASessionWithoutAMappingIsToldNoPlaces) {
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 40);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  ASSERT_FALSE(acquired.pages.empty());
  for (const auto& page : acquired.pages) EXPECT_EQ(page.offset, block::kNoOffset);
  EXPECT_EQ(FetchAndCheck(identity, acquired, tokens), 40u);
}

TEST_F(SessionTest, AWorkersMappingCannotBeWritable) {
  Open(Shared());
  const auto begun = Attach(SmallIdentity());
  const auto files = MapFiles(begun);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, files->arena_fd(), 0),
            MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
}

TEST_F(SessionTest, AFileThatCannotBeUsedMeansPrivateMemoryAndIsSaid) {
  cache::Options options = RamOnly();
  options.arena_path = dir_.path() + "/no/such/folder/arena";
  Open(options);
  EXPECT_EQ(Counter("arena.unusable"), 1u);
  EXPECT_FALSE(cache_->arena().shared);
  cache::SessionOptions wants;
  wants.wants_arena = true;
  EXPECT_EQ(cache_->BeginSession(wants).slot, block::kNoSlot);
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 40);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  EXPECT_EQ(ReadBack(identity, space, tokens), 40u);
}

TEST_F(SessionTest, ASecondCacheOnOneArenaGetsPrivateMemory) {
  Open(Shared());
  cache::Options options = Shared();
  const auto second = cache::Cache::Open(options);
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE((*second)->arena().shared);
  EXPECT_TRUE(cache_->arena().shared);
}

TEST_F(SessionTest, FilesAreGivenOnceAndOnlyToWhoKnowsTheKey) {
  Open(Shared());
  const auto begun = Attach(SmallIdentity());
  cache::SessionKey other = begun.key;
  other[3] ^= std::byte{1};
  EXPECT_EQ(cache_->OpenFiles(other, PeerOf(1)).status().code(), absl::StatusCode::kNotFound);
  const auto files = MapFiles(begun);
  EXPECT_EQ(cache_->OpenFiles(begun.key, PeerOf(getpid())).status().code(),
            absl::StatusCode::kNotFound);
}

// T5: a key that another process knows does not get it the session's writable memory.
TEST_F(SessionTest, T5FilesAreForTheProcessThatAttached) {
  Open(Shared());
  const base::Peer worker = PeerOf(100);
  const auto begun = AttachAs(worker);
  base::Peer other_user = worker, other_process = worker;
  ++other_user.uid;
  other_process.pid = 101;
  for (const base::Peer& thief : {other_user, other_process}) {
    const absl::Status refused = cache_->OpenFiles(begun.key, thief).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(std::string(refused.message()), "open_files: this is " + base::Describe(thief) +
                                                  ", the session is that of " +
                                                  base::Describe(worker));
  }
  EXPECT_EQ(Counter("sessions.files_refused"), 2u);
  const auto files = cache_->OpenFiles(begun.key, worker);
  ASSERT_TRUE(files.ok()) << files.status();
  const MappedFiles mapped(*files, cache_->arena(), begun.staging_bytes);
  EXPECT_EQ(cache_->OpenFiles(begun.key, other_user).status().code(),
            absl::StatusCode::kPermissionDenied);
}

// T5: nor does it take the session over; the worker goes on undisturbed.
TEST_F(SessionTest, T5AnotherProcessDoesNotResumeASession) {
  Open(Shared());
  const base::Peer worker = PeerOf(100);
  const auto begun = AttachAs(worker);
  const MappedFiles files(cache_->OpenFiles(begun.key, worker).value(), cache_->arena(),
                          begun.staging_bytes);
  base::Peer other_user = worker, other_process = worker;
  ++other_user.uid;
  other_process.pid = 101;
  for (const base::Peer& thief : {other_user, other_process}) {
    const auto stolen = AttachAs(thief, begun.key);
    EXPECT_FALSE(stolen.resumed);
    EXPECT_NE(stolen.slot, begun.slot);
  }
  EXPECT_EQ(Counter("sessions.resume_refused"), 2u);
  EXPECT_TRUE(cache_->OpenSpace(begun.session, SmallIdentity()).ok()) << "it was not cut off";
  const auto resumed = AttachAs(worker, begun.key);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.slot, begun.slot);
}

// T5: a session that nobody knows the process of is that of whoever took its files first.
TEST_F(SessionTest, T5WhoTookTheFilesOwnsTheSession) {
  Open(Shared());
  const auto begun = Attach(SmallIdentity());
  const MappedFiles files(cache_->OpenFiles(begun.key, PeerOf(100)).value(), cache_->arena(),
                          begun.staging_bytes);
  EXPECT_FALSE(AttachAs(PeerOf(101), begun.key).resumed);
  EXPECT_TRUE(AttachAs(PeerOf(100), begun.key).resumed);
}

TEST_F(SessionTest, TheSixtyFifthSessionGetsNoSlotAndASlotComesBack) {
  Open(Shared());
  cache::SessionOptions options;
  options.wants_arena = true;
  std::vector<cache::BegunSession> begun;
  for (uint32_t i = 0; i < block::kArenaSlots; ++i) {
    begun.push_back(cache_->BeginSession(options));
    ASSERT_NE(begun.back().slot, block::kNoSlot);
  }
  const auto one_more = cache_->BeginSession(options);
  EXPECT_EQ(one_more.slot, block::kNoSlot);
  cache_->EndSession(begun[17].session);
  EXPECT_EQ(cache_->BeginSession(options).slot, begun[17].slot);
}

TEST_F(SessionTest, SpacesBelongToSessionsThatOpenedThem) {
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 40);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto lease = Acquire(space, tokens).lease;
  const auto stranger = cache_->BeginSession("stranger");
  cache::Request request;
  request.space = space;
  request.tokens = tokens;
  EXPECT_EQ(cache_->Acquire(stranger, request, In(100)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->Match(stranger, request).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(
      cache_
          ->Reserve(stranger,
                    {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}})
          .status()
          .code(),
      absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->Hold(stranger, lease), nullptr);
}

// A dead worker: what it held is freed within 100 ms of its death.
TEST_F(SessionTest, ADeadWorkersLeasesReservationsAndStagingAreFreed) {
  WorkerProcess worker;
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto begun = Attach(identity, 1 << 20);
  EXPECT_EQ(begun.staging_bytes, uint64_t{1} << 20);
  MapIn(begun, &worker);
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  ASSERT_TRUE(Acquire(space, tokens).lease);
  Tokens longer = tokens;
  longer.resize(200, 9);
  const uint64_t before = Counter("arena.extent_bytes");
  auto plan = cache_->Reserve(
      session_, {.space = space, .tokens = longer, .content = {}, .groups = {}, .writable = {}});
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(PutBlock(session_, identity, plan->reservation, longer, plan->blocks.back()).ok());
  EXPECT_GT(Counter("arena.extent_bytes"), before);
  // Its stream ends first, as when the process hangs: it may still read what it leased.
  cache_->EndSession(begun.session);
  block::Stats stats = cache_->GetStats();
  EXPECT_EQ(stats.reservations, 0u);
  EXPECT_EQ(stats.leases, 1u);
  EXPECT_GT(stats.leased_bytes, 0u);
  EXPECT_EQ(Counter("arena.extent_bytes"), before);
  bool listed = false;
  for (const auto& info : cache_->ListSessions()) {
    if (info.session != cache_->NameOf(begun.session)) continue;
    listed = true;
    EXPECT_FALSE(info.attached);
    EXPECT_EQ(info.pid, static_cast<uint64_t>(worker.pid()));
    EXPECT_EQ(info.slot, begun.slot);
    EXPECT_EQ(info.leases, 1u);
    EXPECT_EQ(info.leased_bytes, stats.leased_bytes);
    EXPECT_EQ(info.staging_bytes, 0u);
  }
  EXPECT_TRUE(listed);
  worker.Kill();
  const auto died = std::chrono::steady_clock::now();
  EXPECT_TRUE(Until([this] { return cache_->GetStats().leases == 0; }));
  EXPECT_LT(std::chrono::steady_clock::now() - died, std::chrono::seconds(5))
      << "a few milliseconds, on a machine with time to spare";
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
  EXPECT_EQ(cache_->ListSessions().size(), 1u);  // the fixture's first
  cache::SessionOptions again;
  again.wants_arena = true;
  EXPECT_TRUE(Until([&] { return cache_->BeginSession(again).slot == begun.slot; }));
}

TEST_F(SessionTest, ASessionThatNeverFetchedItsFilesIsFreedAtOnce) {
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto begun = Attach(identity, 1 << 20);
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  ASSERT_TRUE(Acquire(space, tokens).lease);
  cache_->EndSession(begun.session);
  EXPECT_EQ(cache_->GetStats().leases, 0u);
  for (const auto& part : cache_->GetStats().ram_parts) {
    if (part.name == "staging") {
      EXPECT_EQ(part.value, 0u);
    }
  }
}

TEST_F(SessionTest, AResumedSessionGoesOnHoldingWhatItReadBefore) {
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto begun = Attach(identity);
  const auto files = MapFiles(begun);
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  const uint64_t held = cache_->GetStats().leased_bytes;
  cache_->EndSession(begun.session);
  const auto resumed = Attach(identity, 0, begun.key);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(resumed.slot, begun.slot);
  EXPECT_NE(resumed.session, begun.session);
  EXPECT_NE(resumed.key, begun.key);
  ASSERT_TRUE(resumed.resumed_lease);
  EXPECT_EQ(cache_->GetStats().leased_bytes, held);
  EXPECT_EQ(cache_->Release(session_, {.lease = acquired.lease}).code(),
            absl::StatusCode::kNotFound);  // of the earlier session
  CheckInPlace(identity, acquired.pages, tokens, *files);
  EXPECT_TRUE(cache_->Release(session_, {.lease = resumed.resumed_lease}).ok());
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
  EXPECT_FALSE(Attach(identity, 0, begun.key).resumed);  // a key is good once
}

TEST_F(SessionTest, ALeaseIsAtMostHalfOfTheArena) {
  Open(Shared(uint64_t{32} << 20));
  const auto identity = SmallIdentity(64, 16);
  Attach(identity);
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 5500);
  auto stored = Store(identity, space, tokens);
  ASSERT_TRUE(stored.ok()) << stored.status();
  const auto acquired = Acquire(space, tokens);
  EXPECT_LT(acquired.match.restorable_tokens, 5500u);
  EXPECT_GT(acquired.match.restorable_tokens, 500u);
  bool quota = false;
  for (const auto& reason : acquired.match.shortened_by)
    quota |= reason.reason == block::ShortenReason::kLeaseQuota;
  EXPECT_TRUE(quota);
}

TEST_F(SessionTest, HeldPagesStayUntilTheHoldEndsAlthoughTheLeaseWasReleased) {
  Open(Shared());
  const auto identity = SmallIdentity();
  const auto space = OpenSpace(identity);
  const Tokens tokens = RandomTokens(1, 100);
  ASSERT_TRUE(Store(identity, space, tokens).ok());
  const auto acquired = Acquire(space, tokens);
  auto hold = cache_->Hold(session_, acquired.lease);
  ASSERT_NE(hold, nullptr);
  ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
  EXPECT_GT(cache_->GetStats().leased_bytes, 0u);
  EXPECT_EQ(cache_->Hold(session_, acquired.lease), nullptr);
  hold.reset();
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
}

// T3: staging of ended sessions is counted for as long as a worker has it, and one process that
// keeps it leaves some to others.
TEST_F(SessionTest, StagingThatAWorkerKeepsIsCountedAndLeavesSomeToOthers) {
  Open(Shared());
  const auto identity = SmallIdentity();
  std::vector<std::unique_ptr<MappedFiles>> kept;
  const auto staged = [this] {
    for (const auto& part : cache_->GetStats().ram_parts) {
      if (part.name == "staging") return part.value;
    }
    return uint64_t{0};
  };
  uint64_t budget = 0;
  for (int i = 0; i < 100; ++i) {
    const auto begun = Attach(identity, uint64_t{64} << 20);
    if (i == 0) budget = 2 * begun.staging_bytes;
    auto files = cache_->OpenFiles(begun.key, PeerOf(4711));
    ASSERT_TRUE(files.ok()) << files.status();
    for (int* const file : {&files->arena, &files->lock}) close(std::exchange(*file, -1));
    if (files->staging >= 0) {
      kept.push_back(
          std::make_unique<MappedFiles>(*files, cache::ArenaPlace{}, begun.staging_bytes));
    }
    cache_->EndSession(session_);
  }
  EXPECT_EQ(kept.size(), 1u) << "a half of the pool";
  EXPECT_EQ(staged(), budget / 2);
  EXPECT_EQ(Counter("staging.kept_bytes"), budget / 2);
  const auto other = Attach(identity, uint64_t{64} << 20);
  EXPECT_EQ(other.staging_bytes, budget / 4) << "whoever comes next finds room";
  auto files = MapFiles(other);
  EXPECT_NE(files->staging(), nullptr);
  kept.clear();
  EXPECT_TRUE(Until([&] { return staged() == budget / 4; }));
  EXPECT_EQ(Counter("staging.kept_bytes"), 0u);
}

}  // namespace
}  // namespace prefixd::testing
