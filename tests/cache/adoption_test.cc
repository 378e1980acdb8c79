// Killed, and started again on the same arena: what was published is there and right, what was not
// is gone, and what a worker may be reading is left alone.
#include <fcntl.h>

#include "ram/budget.h"
#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {
namespace {

class AdoptionTest : public SharedCacheTest {
 protected:
  Tokens Sequence(uint64_t i) const { return RandomTokens(i / 2, 50 + 17 * i); }  // pairs share
  std::string StoreSequences(uint64_t count) {
    const auto space = OpenSpace(identity_);
    for (uint64_t i = 0; i < count; ++i) {
      EXPECT_TRUE(Store(identity_, space, Sequence(i)).ok());
    }
    return {};
  }
  // Tokens that come back of those that were stored.
  double HitShare(uint64_t count) {
    const auto space = OpenSpace(identity_);
    double hits = 0, stored = 0;
    for (uint64_t i = 0; i < count; ++i) {
      hits += ReadBack(identity_, space, Sequence(i));
      stored += static_cast<double>(Sequence(i).size());
    }
    return hits / stored;
  }
  // Flips a byte of the arena's file where `tokens` have their page at `first` of `group`.
  void FlipPayload(const Tokens& tokens, uint32_t group, uint32_t first, uint32_t count) {
    const auto page = MakePage(identity_.groups[group], 0, tokens, first, count);
    const int fd = open(arena_path_.c_str(), O_RDWR);
    off_t at = -1;
    for (off_t data = lseek(fd, 0, SEEK_DATA); data >= 0 && at < 0;) {  // the file is sparse
      const off_t hole = lseek(fd, data, SEEK_HOLE);
      std::string bytes(static_cast<size_t>(hole - data), '\0');
      ASSERT_EQ(pread(fd, bytes.data(), bytes.size(), data), hole - data);
      const size_t found = bytes.find(base::AsText(page));
      if (found != std::string::npos) at = data + static_cast<off_t>(found);
      data = lseek(fd, hole, SEEK_DATA);
    }
    ASSERT_GE(at, 0);
    char byte = 0;
    ASSERT_EQ(pread(fd, &byte, 1, at + 77), 1);
    byte = static_cast<char>(byte ^ 4);
    ASSERT_EQ(pwrite(fd, &byte, 1, at + 77), 1);
    close(fd);
  }
  const block::SpaceIdentity identity_ = SmallIdentity();
};

TEST_F(AdoptionTest, AfterAKillWhatWasPublishedIsThereByteForByte) {
  LiveAndBeKilled(Shared(), [this] { return StoreSequences(20); });
  Open(Shared());
  EXPECT_GT(Counter("adopted.pages"), 0u);
  EXPECT_GE(HitShare(20), 0.99);
  EXPECT_EQ(Counter("check_failures"), 0u);
  const auto space = OpenSpace(identity_);
  EXPECT_EQ(Acquire(space, Sequence(7)).match.kind, block::MatchKind::kExact);  // ends survive
}

TEST_F(AdoptionTest, AfterAKillAndAnotherOneToo) {
  LiveAndBeKilled(Shared(), [this] { return StoreSequences(10); });
  LiveAndBeKilled(Shared(), [this] {
    EXPECT_GE(HitShare(10), 0.99);
    return StoreSequences(20);
  });
  LiveAndBeKilled(Shared(), [] { return std::string(); });  // nothing was verified in this life
  Open(Shared());
  EXPECT_GE(HitShare(20), 0.99);
}

TEST_F(AdoptionTest, ACleanStopKeepsTheRamCacheToo) {
  for (bool ssd : {false, true}) {
    Open(ssd ? SharedWithSsd() : Shared());
    StoreSequences(10);
    if (ssd) cache_->Flush(In(20000));
    Open(ssd ? SharedWithSsd() : Shared());
    EXPECT_GE(HitShare(10), 1.0);
    EXPECT_EQ(Counter("pages.promoted"), 0u);  // from RAM, although the SSD has them
    cache_.reset();
    std::filesystem::remove(arena_path_);
  }
}

TEST_F(AdoptionTest, WhatWasPutButNotCommittedIsGone) {
  LiveAndBeKilled(Shared(), [this] {
    StoreSequences(2);
    const auto space = OpenSpace(identity_);
    const Tokens tokens = RandomTokens(99, 300);
    auto plan = cache_->Reserve(
        session_, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
    for (const auto& block : plan->blocks)
      EXPECT_TRUE(PutBlock(session_, identity_, plan->reservation, tokens, block).ok());
    return std::to_string(Counter("arena.extent_bytes"));
  });
  Open(Shared());
  const auto space = OpenSpace(identity_);
  EXPECT_EQ(Acquire(space, RandomTokens(99, 300)).match.matched_tokens, 0u);
  EXPECT_GE(HitShare(2), 1.0);
  ASSERT_TRUE(cache_->Clear(nullptr).ok());
  cache_->EndSession(session_);
  EXPECT_EQ(Counter("arena.extent_bytes"), 0u);  // nothing leaked
}

TEST_F(AdoptionTest, AFlippedByteIsAMissNeverWrongBytesAndHeals) {
  LiveAndBeKilled(Shared(), [this] { return StoreSequences(2); });
  FlipPayload(Sequence(1), 1, 32, 16);
  Open(Shared());
  const auto space = OpenSpace(identity_);
  EXPECT_EQ(ReadBack(identity_, space, Sequence(1)), 32u);
  EXPECT_EQ(Counter("check_failures"), 1u);
  ASSERT_TRUE(Store(identity_, space, Sequence(1)).ok());
  EXPECT_EQ(ReadBack(identity_, space, Sequence(1)), Sequence(1).size());
}

TEST_F(AdoptionTest, AFlippedByteInRamIsReadAgainFromTheSsd) {
  LiveAndBeKilled(SharedWithSsd(), [this] {
    StoreSequences(2);
    EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
    return std::string();
  });
  FlipPayload(Sequence(1), 0, 16, 16);
  Open(SharedWithSsd());
  const auto space = OpenSpace(identity_);
  EXPECT_TRUE(Until([this] { return Counter("verified.everything") == 1; }));
  EXPECT_EQ(Counter("check_failures"), 1u);
  EXPECT_EQ(ReadBack(identity_, space, Sequence(1)), Sequence(1).size());
}

TEST_F(AdoptionTest, WhatWasClearedStaysClearedAfterAKill) {
  LiveAndBeKilled(Shared(), [this] {
    StoreSequences(10);
    EXPECT_TRUE(cache_->Clear(nullptr).ok());
    EXPECT_TRUE(Store(identity_, OpenSpace(identity_), RandomTokens(99, 100)).ok());
    return std::string();
  });
  Open(Shared());
  const auto space = OpenSpace(identity_);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(Acquire(space, Sequence(i)).match.matched_tokens, 0u);
  EXPECT_EQ(ReadBack(identity_, space, RandomTokens(99, 100)), 100u);
}

// Adopted pages are checked in the background, without anyone asking.
TEST_F(AdoptionTest, EverythingIsVerifiedSoonAfterAStart) {
  LiveAndBeKilled(Shared(), [this] { return StoreSequences(20); });
  Open(Shared());
  const uint64_t adopted = Counter("adopted.pages");
  EXPECT_TRUE(Until([this] { return Counter("verified.everything") == 1; }));
  EXPECT_EQ(Counter("pages.verified"), adopted);
}

// A stop right after a start saves what the life before left in RAM alone: found by tests/stress.
TEST_F(AdoptionTest, AFlushRightAfterAStartSavesWhatAnEarlierDaemonLeftInRam) {
  LiveAndBeKilled(SharedWithSsd(), [this] { return StoreSequences(40); });
  Open(SharedWithSsd());
  EXPECT_GT(Counter("adopted.pages"), 0u);
  EXPECT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
}

TEST_F(AdoptionTest, HandlesOfAnEarlierLifeMeanNothing) {
  const std::string ids = LiveAndBeKilled(Shared(), [this] {
    StoreSequences(2);
    const auto acquired = Acquire(OpenSpace(identity_), Sequence(1));
    return std::to_string(session_.value) + " " + std::to_string(acquired.lease.value) + " " +
           std::to_string(OpenSpace(identity_).value) + " " + std::to_string(cache_->epoch());
  });
  uint64_t session = 0, lease = 0, space = 0, epoch = 0;
  ASSERT_EQ(sscanf(ids.c_str(), "%lu %lu %lu %lu", &session, &lease, &space, &epoch), 4);
  Open(Shared());
  EXPECT_NE(cache_->epoch(), epoch);
  cache::Request request;
  request.space = block::SpaceHandle{space};
  request.tokens = Sequence(1);
  EXPECT_EQ(cache_->Acquire({session}, request, In(100)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(cache_->Acquire(session_, request, In(100)).status().code(),
            absl::StatusCode::kNotFound);  // until it opens the space
  const auto now = Acquire(OpenSpace(identity_), Sequence(1));
  EXPECT_NE(now.lease.value, lease);
  EXPECT_EQ(cache_->Release(session_, {.lease = {lease}}).code(), absl::StatusCode::kNotFound);
}

// The promise of the lease rule: a worker that is stopped while it reads finds the same bytes when
// it goes on, whatever became of its session and of the daemon.
TEST_F(AdoptionTest, AStoppedWorkerKeepsItsPagesThroughSessionEndKillAndEviction) {
  WorkerProcess worker;
  const Tokens tokens = RandomTokens(1, 320);
  const auto identity = SmallIdentity(64, 16);
  std::string told = LiveAndBeKilled(Shared(uint64_t{32} << 20), [&] {
    const auto begun = Attach(identity);
    MapIn(begun, &worker);
    const auto space = OpenSpace(identity);
    EXPECT_TRUE(Store(identity, space, tokens).ok());
    const auto acquired = Acquire(space, tokens);
    EXPECT_EQ(acquired.match.restorable_tokens, 320u);
    cache_->EndSession(begun.session);
    std::string result(reinterpret_cast<const char*>(begun.key.data()), begun.key.size());
    result.append(reinterpret_cast<const char*>(acquired.pages.data()),
                  acquired.pages.size() * sizeof(block::LeasedPage));
    return result;
  });
  cache::SessionKey key;
  std::memcpy(key.data(), told.data(), key.size());
  std::vector<block::LeasedPage> pages((told.size() - key.size()) / sizeof(block::LeasedPage));
  std::memcpy(pages.data(), told.data() + key.size(), pages.size() * sizeof(block::LeasedPage));
  ASSERT_EQ(pages.size(), 8u * 5);
  worker.Signal(SIGSTOP);

  const auto press = [&](uint64_t seed) {
    const auto space = OpenSpace(identity);
    for (uint64_t i = 0; i < 40; ++i)
      EXPECT_TRUE(Store(identity, space, RandomTokens(seed + i, 1000)).ok());
    EXPECT_GT(Counter("pages.evicted"), 0u);
  };
  const auto check = [&] {
    for (const auto& page : pages) {
      const auto want = MakePage(identity.groups[page.group], page.rung, tokens, page.first_token,
                                 page.page_tokens);
      EXPECT_EQ(worker.Sum(page.offset, want.size()), base::Xxh3(want));
    }
  };
  Open(Shared(uint64_t{32} << 20));
  const auto sessions = cache_->ListSessions();
  ASSERT_EQ(sessions.size(), 2u);
  for (const auto& info : sessions) {
    if (info.session == cache_->NameOf(session_)) continue;
    EXPECT_FALSE(info.attached);
    EXPECT_EQ(info.pid, static_cast<uint64_t>(worker.pid()));
    EXPECT_GT(info.leased_bytes, 0u);
  }
  press(1000);
  Open(Shared(uint64_t{32} << 20));          // a clean restart in between
  ASSERT_TRUE(cache_->Clear(nullptr).ok());  // not even that moves what may be read
  press(2000);
  Open(Shared(uint64_t{32} << 20));
  press(3000);
  worker.Signal(SIGCONT);
  check();
  // T5: another process does not take it over, although it knows the key.
  base::Peer other_user = PeerOf(worker.pid());
  ++other_user.uid;
  EXPECT_FALSE(AttachAs(PeerOf(getpid()), key).resumed);
  EXPECT_FALSE(AttachAs(other_user, key).resumed);
  EXPECT_EQ(Counter("sessions.resume_refused"), 2u);
  // It comes back: what it held is its own until it releases it.
  const auto resumed = AttachAs(PeerOf(worker.pid()), key);
  EXPECT_TRUE(resumed.resumed);
  session_ = resumed.session;
  EXPECT_TRUE(cache_->OpenSpace(session_, identity).ok());
  ASSERT_TRUE(resumed.resumed_lease);
  press(4000);
  check();
  EXPECT_TRUE(cache_->Release(session_, {.lease = resumed.resumed_lease}).ok());
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
}

TEST_F(AdoptionTest, WhatADeadWorkerHeldIsOrdinaryCacheAfterARestart) {
  WorkerProcess worker;
  LiveAndBeKilled(Shared(), [&] {
    const auto begun = Attach(identity_);
    MapIn(begun, &worker);
    StoreSequences(4);
    EXPECT_TRUE(Acquire(OpenSpace(identity_), Sequence(3)).lease);
    return std::string();
  });
  worker.Kill();
  Open(Shared());
  EXPECT_TRUE(Until([this] { return cache_->ListSessions().size() == 1; }));
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
  EXPECT_GE(HitShare(4), 1.0);
}

TEST_F(AdoptionTest, ASmallerBudgetKeepsWhatFitsAndALargerOneAll) {
  const auto identity = SmallIdentity(64, 16);
  const auto store = [&] {
    const auto space = OpenSpace(identity);
    for (uint64_t i = 0; i < 14; ++i)
      EXPECT_TRUE(Store(identity, space, RandomTokens(i, 1000)).ok());
  };
  LiveAndBeKilled(Shared(uint64_t{64} << 20), [&] {
    store();
    return std::string();
  });
  Open(Shared(uint64_t{32} << 20));
  const auto fits = [this] {
    const block::Stats stats = cache_->GetStats();
    uint64_t bytes = 0;
    for (const auto& part : stats.ram_parts) {
      if (part.name == "arena" || part.name == "arena tables") bytes += part.value;
    }
    return bytes <= ram::CutBudget(stats.ram_budget_bytes, /*has_ssd=*/false,
                                   /*shared_arena=*/true)
                        ->arena_bytes;
  };
  EXPECT_TRUE(Until(fits));
  Open(Shared(uint64_t{32} << 20));  // an emptying that was under way when it fitted has ended
  EXPECT_TRUE(fits());
  EXPECT_EQ(ReadBack(identity, OpenSpace(identity), RandomTokens(13, 1000)), 1000u);
  uint64_t kept = 0;
  for (uint64_t i = 0; i < 14; ++i)
    kept += ReadBack(identity, OpenSpace(identity), RandomTokens(i, 1000));
  EXPECT_GT(kept, 3000u);
  EXPECT_LT(kept, 14000u);
  Open(Shared(uint64_t{64} << 20));
  uint64_t still = 0;
  for (uint64_t i = 0; i < 14; ++i)
    still += ReadBack(identity, OpenSpace(identity), RandomTokens(i, 1000));
  EXPECT_EQ(still, kept);
  store();
  for (uint64_t i = 0; i < 14; ++i)
    EXPECT_EQ(ReadBack(identity, OpenSpace(identity), RandomTokens(i, 1000)), 1000u);
}

// Two pages in one extent would be wrong bytes, and the arena would end the program when both go.
TEST_F(AdoptionTest, WhatIsGivenUpWhileItIsVerifiedComesBackRight) {
  const auto identity = SmallIdentity(64, 16);
  for (uint64_t round = 0; round < 6; ++round) {
    const auto sequence = [&](uint64_t i) { return RandomTokens(100 * round + i, 1000); };
    Open(SharedWithSsd(uint64_t{64} << 20));
    const auto space = OpenSpace(identity);
    for (uint64_t i = 0; i < 14; ++i) EXPECT_TRUE(Store(identity, space, sequence(i)).ok());
    cache_->Flush(In(20000));
    Open(SharedWithSsd(uint64_t{32} << 20));  // the coldest go while the hottest are verified
    const auto again = OpenSpace(identity);
    for (uint64_t i = 0; i < 14; ++i) EXPECT_EQ(ReadBack(identity, again, sequence(i)), 1000u);
    EXPECT_EQ(Counter("check_failures"), 0u);
  }
}

TEST_F(AdoptionTest, RecencyCarriesOver) {
  const auto identity = SmallIdentity(64, 16);
  LiveAndBeKilled(Shared(uint64_t{32} << 20), [&] {
    const auto space = OpenSpace(identity);
    for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(Store(identity, space, RandomTokens(i, 500)).ok());
    for (uint64_t i : {0, 1}) EXPECT_EQ(ReadBack(identity, space, RandomTokens(i, 500)), 500u);
    return std::string();
  });
  Open(Shared(uint64_t{32} << 20));  // and no wait until all is verified, what is hot first
  const auto space = OpenSpace(identity);
  uint64_t next = 100;
  while (Counter("pages.evicted") < 20)
    ASSERT_TRUE(Store(identity, space, RandomTokens(next++, 200)).ok());
  EXPECT_EQ(Acquire(space, RandomTokens(0, 500)).match.restorable_tokens, 500u);
  EXPECT_EQ(Acquire(space, RandomTokens(1, 500)).match.restorable_tokens, 500u);
  EXPECT_LT(Acquire(space, RandomTokens(2, 500)).match.restorable_tokens, 500u);
}

}  // namespace
}  // namespace prefixd::testing
