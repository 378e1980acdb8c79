// The whole way over a shared arena: a daemon in this process, hits read where it stores them,
// pages quantized where it takes them from.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "tests/client/daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint64_t kPrivate = ~uint64_t{0};

class SharedArenaTest : public testing::Test {
 protected:
  void StartDaemon(const std::string& ssd = "", uint64_t ram_bytes = uint64_t{256} << 20) {
    daemon_.emplace(
        directory_.socket(),
        DaemonOptions{.arena = arena_.path(), .directory = ssd, .ram_bytes = ram_bytes});
  }
  void Open(ClientOptions options = {}) {
    options.address = directory_.address();
    client_.emplace(options);
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
    ASSERT_NE(client_->arena().data, nullptr) << client_->arena().why_not;
  }
  bool InArena(const BlockTableEntry& entry) const {
    const ArenaInfo arena = client_->arena();
    return entry.units >= arena.data && entry.units < arena.data + arena.data_bytes &&
           entry.arena_offset == static_cast<uint64_t>(entry.units - arena.data);
  }
  // How many blocks of the layer are read in the arena.
  size_t InPlace(Sequence& seq, int layer) const {
    const auto table = seq.block_table(layer);
    return static_cast<size_t>(std::count_if(
        table.begin(), table.end(), [&](const BlockTableEntry& entry) { return InArena(entry); }));
  }
  Sequence Store(const std::vector<uint32_t>& tokens) {
    Sequence seq = space_.value().Begin(tokens);
    const uint32_t cached = seq.WaitAll();
    AppendTokens(seq, spec_, tokens, cached, static_cast<uint32_t>(tokens.size()));
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    EXPECT_TRUE(stored.ok()) << stored.status.message;
    return seq;
  }
  uint64_t Count(const std::string& name) {
    for (const block::NamedCount& count : daemon_->cache().GetStats().counters) {
      if (count.name == name) return count.value;
    }
    return 0;
  }
  uint64_t Leases() { return daemon_->cache().GetStats().leases; }
  template <typename Done>
  static bool Eventually(Done done) {
    for (const auto end = steady_clock::now() + milliseconds(20'000); steady_clock::now() < end;) {
      if (done()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  TempDirectory directory_;
  ArenaPath arena_;
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
  SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
};

TEST_F(SharedArenaTest, AHitIsReadInPlaceByteForByte) {
  StartDaemon();
  Open();
  std::vector<Packed> written;
  {
    Sequence cold = Store(tokens_);
    written = GatherAll(cold, spec_, 300);
  }
  Sequence hit = space_.value().Begin(tokens_);
  EXPECT_TRUE(hit.match().in_place);
  ASSERT_EQ(hit.WaitAll(), 300u);
  for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(InPlace(hit, layer), 5u) << layer;
  EXPECT_EQ(GatherAll(hit, spec_, 300), written);
  EXPECT_GT(hit.in_place_bytes(), 0u);

  // A cut page is used where it stands, with fewer tokens.
  Sequence cut = space_.value().Begin(tokens_, {.max_cached_tokens = 290});
  ASSERT_EQ(cut.WaitAll(), 290u);
  EXPECT_EQ(InPlace(cut, 1), 5u);
  EXPECT_EQ(cut.block_table(1)[4].tokens, 290u - 256u);
  EXPECT_GE(cut.block_table(1)[4].page_tokens, 300u - 256u);
  // Going on inside it copies its tokens into a page of our own.
  AppendTokens(cut, spec_, tokens_, 290, 300);
  EXPECT_EQ(InPlace(cut, 1), 4u);
  EXPECT_EQ(GatherAll(cut, spec_, 300), written);
}

TEST_F(SharedArenaTest, ACommitSwapsFullBlocksForTheArenasAndKeepsTheTail) {
  StartDaemon();
  Open({.staging_bytes = 4 << 20});
  ASSERT_EQ(client_->arena().staging_bytes, 4u << 20);
  Sequence seq = space_.value().Begin(tokens_);
  AppendTokens(seq, spec_, tokens_, 0, 300);
  const std::vector<Packed> own = GatherAll(seq, spec_, 300);
  EXPECT_EQ(InPlace(seq, 0), 0u);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(InPlace(seq, layer), 4u) << layer;
    EXPECT_EQ(seq.block_table(layer)[4].arena_offset, kPrivate);
  }
  EXPECT_EQ(GatherAll(seq, spec_, 300), own);
  EXPECT_EQ(Count("rpc.put"), 0u) << "nothing was sent";
  EXPECT_EQ(Count("rpc.reserve"), 0u) << "the lookup announced it";
  // On: the tail grows, and is swapped once it is full.
  std::vector<uint32_t> longer = tokens_;
  for (uint32_t token : Tokens(100, 2)) {
    longer.push_back(token);
    seq.PushToken(token);
  }
  AppendTokens(seq, spec_, longer, 300, 400);
  ASSERT_TRUE(seq.Commit().ok());
  EXPECT_EQ(InPlace(seq, 0), 6u);
  EXPECT_GE(Leases(), 2u);
  const std::vector<Packed> all = GatherAll(seq, spec_, 400);
  seq = {};
  EXPECT_TRUE(Eventually([&] { return Leases() == 0; }));
  EXPECT_EQ(daemon_->cache().GetStats().reservations, 0u);
  Sequence again = space_.value().Begin(longer);
  ASSERT_EQ(again.WaitAll(), 384u);
  const std::vector<Packed> stored = GatherAll(again, spec_, 384);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_FALSE(stored[i].codes.empty());
  AppendTokens(again, spec_, longer, 384, 400);
  EXPECT_EQ(GatherAll(again, spec_, 400), all);
}

TEST_F(SharedArenaTest, WritingOverASwappedBlockMakesItPrivateAgain) {
  StartDaemon();
  Open();
  Sequence seq = space_.value().Begin(tokens_);
  AppendTokens(seq, spec_, tokens_, 0, 300);
  const std::vector<Packed> own = GatherAll(seq, spec_, 300);
  ASSERT_TRUE(seq.Commit().ok());
  ASSERT_EQ(InPlace(seq, 1), 4u);
  AppendTokens(seq, spec_, tokens_, 100, 300);  // from the middle of block 1
  EXPECT_EQ(InPlace(seq, 1), 1u);
  EXPECT_EQ(GatherAll(seq, spec_, 300), own);
}

TEST_F(SharedArenaTest, WhatStagingHasNoRoomForIsSent) {
  StartDaemon();
  Open({.staging_bytes = 256 << 10});
  ASSERT_GT(client_->arena().staging_bytes, 0u);
  const std::vector<uint32_t> tokens = Tokens(1000, 3);
  std::vector<Packed> written;
  {
    Sequence seq = Store(tokens);
    EXPECT_GT(Count("rpc.put"), 0u);
    EXPECT_EQ(InPlace(seq, 0), 15u);
    written = GatherAll(seq, spec_, 1000);
  }
  Sequence hit = space_.value().Begin(tokens);
  ASSERT_EQ(hit.WaitAll(), 1000u);
  EXPECT_EQ(GatherAll(hit, spec_, 1000), written);
}

TEST_F(SharedArenaTest, AWorkerWithoutStagingSendsAndReadsInPlace) {
  StartDaemon();
  Open({.staging_bytes = 0});
  EXPECT_EQ(client_->arena().staging_bytes, 0u);
  Sequence seq = Store(tokens_);
  EXPECT_EQ(InPlace(seq, 2), 4u);
}

TEST_F(SharedArenaTest, OneWorkersFetchIsAnothersMapping) {
  StartDaemon();
  Open();
  const std::vector<Packed> written = GatherAll(Store(tokens_), spec_, 300);
  Client remote({.address = directory_.address(), .use_arena = false});
  Result<Space> space = remote.OpenSpace(spec_);
  Sequence fetched = space.value().Begin(tokens_);
  EXPECT_FALSE(fetched.match().in_place);
  ASSERT_EQ(fetched.WaitAll(), 300u);
  EXPECT_EQ(fetched.in_place_bytes(), 0u);
  EXPECT_EQ(GatherAll(fetched, spec_, 300), written);
}

TEST_F(SharedArenaTest, PagesOnSsdAreReadInPlaceOnceTheyAreLoaded) {
  TempDirectory ssd;
  std::vector<Packed> written;
  StartDaemon(ssd.path());
  Open();
  written = GatherAll(Store(tokens_), spec_, 300);
  daemon_->cache().Flush(steady_clock::now() + milliseconds(20'000));
  client_.reset();
  daemon_.reset();
  std::filesystem::remove(arena_.path());  // as after a reboot
  StartDaemon(ssd.path());
  Open();
  Sequence hit = space_.value().Begin(tokens_);
  EXPECT_GT(hit.match().ssd_bytes, 0u);
  ASSERT_EQ(hit.WaitAll(), 300u);
  EXPECT_EQ(InPlace(hit, 1), 5u);
  EXPECT_EQ(GatherAll(hit, spec_, 300), written);
}

TEST_F(SharedArenaTest, AnAnnouncementIsSeenByOthersAndWaitedFor) {
  StartDaemon();
  Open();
  Sequence first = space_.value().Begin(tokens_);
  Client other({.address = directory_.address()});
  Result<Space> space = other.OpenSpace(spec_);
  EXPECT_EQ(space.value().Begin(tokens_, {.announce = false}).match().pending_tokens, 300u);
  std::thread writer([&] {
    AppendTokens(first, spec_, tokens_, 0, 300);
    EXPECT_TRUE(first.Commit({.sequence_end = true}).ok());
  });
  Sequence second = space.value().Begin(
      tokens_, {.deadline = milliseconds(20'000), .wait_pending = milliseconds(20'000)});
  writer.join();
  EXPECT_EQ(second.WaitAll(), 300u) << "a host computes a new prompt once";
  EXPECT_EQ(GatherAll(second, spec_, 300), GatherAll(first, spec_, 300));
}

TEST_F(SharedArenaTest, WhatWasAnnouncedAndNotStoredIsGivenUp) {
  StartDaemon();
  Open();
  { Sequence seq = space_.value().Begin(tokens_); }
  EXPECT_TRUE(Eventually([&] { return daemon_->cache().GetStats().reservations == 0; }));
}

// The daemon goes and comes back while a sequence reads: the bytes stay, the session goes on, what
// the old one held is let go with the last that reads it.
TEST_F(SharedArenaTest, SequencesOutliveTheDaemonAndTheNextOneKnowsWhatTheyHold) {
  StartDaemon();
  Open();
  Store(tokens_);
  std::optional<Sequence> seq = space_.value().Begin(tokens_);
  ASSERT_EQ(seq->WaitAll(), 300u);
  const std::vector<Packed> written = GatherAll(*seq, spec_, 300);
  daemon_.reset();
  EXPECT_EQ(GatherAll(*seq, spec_, 300), written);
  StartDaemon();
  ASSERT_TRUE(Eventually([&] { return client_->attached() && client_->arena().data != nullptr; }));
  EXPECT_EQ(GatherAll(*seq, spec_, 300), written);
  EXPECT_TRUE(Eventually([&] { return space_.value().Begin(tokens_).WaitAll() == 300u; }))
      << "found again";
  // Its own blocks go on being stored by the new session.
  std::vector<uint32_t> longer = tokens_;
  for (uint32_t token : Tokens(100, 2)) {
    longer.push_back(token);
    seq->PushToken(token);
  }
  AppendTokens(*seq, spec_, longer, 300, 400);
  const Result<CommitInfo> stored = seq->Commit({.sequence_end = true});
  EXPECT_TRUE(stored.ok()) << stored.status.message;
  EXPECT_GT(Leases(), 0u);
  seq.reset();
  EXPECT_TRUE(Eventually([&] { return Leases() == 0; })) << Leases();
  EXPECT_EQ(space_.value().Begin(longer).WaitAll(), 400u);
}

}  // namespace
}  // namespace prefixd
