// One request in several spaces: the ranks of a model, a draft beside its target. All begin at one
// length, with the bytes that are theirs.
#include <algorithm>
#include <fstream>
#include <thread>

#include "tests/client/played_daemon.h"
#include "tests/client/restart.h"

namespace prefixd {
namespace {

constexpr uint64_t kStateBytes = 1000;

// Layers 0 and 2 full, 1 sliding, 3 with a state.
SpaceSpec TargetSpace() {
  SpaceSpec spec{.model = "target", .weights_digest = {std::byte{9}}};
  const KvFormat format = MlxAffine(8, 64, 4, 64, Dtype::kF16);
  const LayerSpec full{.kv_heads = 2, .key_dim = 64, .value_dim = 128, .formats = {format}};
  LayerSpec sliding = full;
  sliding.kind = LayerKind::kSliding;
  sliding.window = 100;
  sliding.sink_tokens = 4;
  spec.layers = {full, sliding, full, {.kind = LayerKind::kState, .state_bytes = kStateBytes}};
  return spec;
}
// Another shape, another format, shorter blocks.
SpaceSpec DraftSpace() {
  SpaceSpec spec{.model = "draft", .weights_digest = {std::byte{10}}};
  spec.draft = true;
  spec.block_tokens = 32;
  spec.layers = {{.kv_heads = 1, .key_dim = 32, .value_dim = 32, .formats = {Raw(Dtype::kBf16)}}};
  return spec;
}
SpaceSpec RankSpace(uint32_t rank) {
  SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  spec.tensor_parallel = 2;
  spec.tensor_rank = rank;
  return spec;
}

std::vector<std::byte> StateOf(const std::vector<uint32_t>& tokens, uint32_t count) {
  uint32_t sum = 77;
  for (uint32_t i = 0; i < count; ++i) sum = sum * 31 + tokens[i];
  std::vector<std::byte> state(kStateBytes);
  for (std::byte& byte : state) byte = static_cast<std::byte>((sum = sum * 1664525 + 1) >> 24);
  return state;
}

class SetTest : public RestartTest {
 protected:
  void Start(std::vector<SpaceSpec> specs) {
    specs_ = std::move(specs);
    StartDaemon();
    spaces_.clear();
    for (const SpaceSpec& spec : specs_) {
      Result<Space> space = client_->OpenSpace(spec);
      ASSERT_TRUE(space.ok()) << space.status.message;
      spaces_.push_back(std::move(space.value()));
    }
  }
  // As after a reboot.
  void Restart() {
    spaces_.clear();
    StopDaemon();
    if (damage_) Damage();
    Start(specs_);
  }
  // Bytes in the middle of every file of pages.
  void Damage() {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      if (entry.path().extension() != ".sst" || entry.file_size() < (64u << 10)) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      const auto size = static_cast<std::streamoff>(entry.file_size());
      for (std::streamoff at = size / 5 * 2; at < size / 5 * 3; at += 2048) {
        file.seekg(at);
        const char byte = static_cast<char>(file.get() ^ 0x55);
        file.seekp(at);
        file.put(byte);
      }
    }
  }
  // Computes tokens [begin, end) of one member.
  void Compute(size_t member, Sequence& seq, uint32_t begin, uint32_t end) {
    if (begin == end) return;
    const SpaceSpec& spec = specs_[member];
    const std::vector<uint32_t> wanted(seq.snapshots_wanted().begin(),
                                       seq.snapshots_wanted().end());
    for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
      const LayerSpec& l = spec.layers[layer];
      const int index = static_cast<int>(layer);
      if (l.kind == LayerKind::kState) {
        for (const uint32_t at : wanted) {
          if (at <= begin || at > end) continue;
          ASSERT_TRUE(seq.PutState(index, at, StateOf(tokens_, at)).ok());
        }
        continue;
      }
      const auto k = Tensor(tokens_, begin, end - begin, layer, l.kv_heads, l.key_dim, true);
      const auto v = Tensor(tokens_, begin, end - begin, layer, l.kv_heads, l.value_dim, false);
      const Status put =
          seq.Append(index, begin, end - begin, {.data = k.data()}, {.data = v.data()});
      ASSERT_TRUE(put.ok()) << put.message;
    }
  }
  // Stores the first `count` tokens of one member.
  void Store(size_t member, uint32_t count) {
    const std::span<const uint32_t> tokens = std::span(tokens_).first(count);
    Sequence seq = spaces_[member].Begin(tokens);
    uint32_t cached = seq.WaitAll();
    // Each try finds bad pages, which are dropped.
    for (int i = 0; i < 16 && cached < seq.match().restorable_tokens; ++i) {
      seq = spaces_[member].Begin(tokens);
      cached = seq.WaitAll();
    }
    Compute(member, seq, cached, count);
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    ASSERT_TRUE(stored.ok()) << stored.status.message;
  }
  std::vector<Lease> AcquireAll(uint32_t max_tokens = 399) {
    std::vector<SetMember> members;
    for (Space& space : spaces_) members.push_back({&space, {.max_cached_tokens = max_tokens}});
    return client_->AcquireSet(members, tokens_);
  }
  // Waits for all leases. Returns the tokens that are good in all of them.
  static uint32_t WaitAll(std::vector<Lease>& set) {
    uint32_t least = ~uint32_t{0};
    for (Lease& lease : set) least = std::min(least, lease.WaitAll());
    return least;
  }
  // The first `cached` tokens of each lease hold what a sequence alone computes.
  void Check(std::vector<Lease>& set, uint32_t cached) {
    for (size_t member = 0; member < set.size(); ++member) {
      const SpaceSpec& spec = specs_[member];
      Sequence alone = spaces_[member].Begin(tokens_, {.max_cached_tokens = 0});
      Compute(member, alone, 0, cached);
      for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
        const LayerSpec& l = spec.layers[layer];
        const int index = static_cast<int>(layer);
        if (l.kind == LayerKind::kState) {
          std::vector<std::byte> state(kStateBytes);
          EXPECT_TRUE(set[member].GetState(index, state).ok());
          EXPECT_EQ(state, StateOf(tokens_, set[member].restorable_tokens()));
          continue;
        }
        const std::vector<TokenRun> runs = set[member].runs(index);
        ASSERT_FALSE(runs.empty());
        EXPECT_EQ(runs.front().begin, 0u);
        EXPECT_GE(runs.back().end, cached);
        for (const TokenRun& run : runs) {
          const uint32_t begin = run.begin, count = std::min(run.end, cached) - begin;
          if (begin >= cached) break;
          Packed k(l.formats[0].key, l.kv_heads, l.key_dim, count), k2 = k;
          Packed v(l.formats[0].value, l.kv_heads, l.value_dim, count), v2 = v;
          EXPECT_TRUE(set[member].Gather(index, begin, count, k.view(), v.view()).ok());
          EXPECT_TRUE(alone.Gather(index, begin, count, k2.view(), v2.view()).ok());
          EXPECT_EQ(k, k2);
          EXPECT_EQ(v, v2);
        }
      }
    }
  }
  // Releases ride on calls, or go by themselves.
  bool NothingIsHeld() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      const block::Stats stats = daemon_->cache().GetStats();
      if (stats.leases == 0 && stats.leased_bytes == 0 && stats.reservations == 0) return true;
      std::this_thread::yield();
    }
    return false;
  }

  bool damage_ = false;
  std::vector<SpaceSpec> specs_;
  std::vector<Space> spaces_;
  const std::vector<uint32_t> tokens_ = Tokens(400, 1);
};

TEST_P(SetTest, ADraftBesideItsTargetBeginsWhereBothCan) {
  Start({TargetSpace(), DraftSpace()});
  Store(0, 400);
  Store(1, 300);
  const auto check = [&] {
    std::vector<Lease> both = AcquireAll();
    ASSERT_EQ(both.size(), 2u);
    EXPECT_EQ(WaitAll(both), 256u) << "a snapshot of the lattice";
    EXPECT_EQ(both[0].match().why_shorter, "max_tokens 1, common_length 143");
    EXPECT_EQ(both[1].match().why_shorter, "common_length 44");
    Check(both, 256);
  };
  check();
  EXPECT_TRUE(NothingIsHeld());
  Restart();
  check();
  EXPECT_TRUE(NothingIsHeld());
}

// What one turn stored in both spaces is where the next one begins.
TEST_P(SetTest, ATurnGoesOnInBoth) {
  Start({TargetSpace(), DraftSpace()});
  for (size_t member = 0; member < 2; ++member) Store(member, 300);
  std::vector<Lease> both = AcquireAll();
  EXPECT_EQ(WaitAll(both), 299u) << "the state one token before the end";
  Check(both, 299);
  both.clear();
  for (size_t member = 0; member < 2; ++member) Store(member, 400);
  both = AcquireAll();
  EXPECT_EQ(WaitAll(both), 399u);
  Check(both, 399);
}

TEST_P(SetTest, WhereTheDraftHasNothingNothingIsRestored) {
  Start({TargetSpace(), DraftSpace()});
  Store(0, 400);
  const std::vector<Lease> both = AcquireAll();
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0].restorable_tokens(), 0u);
  EXPECT_EQ(both[1].restorable_tokens(), 0u);
  EXPECT_EQ(both[0].match().matched_tokens, 400u);
  EXPECT_EQ(both[0].match().why_shorter, "max_tokens 1, common_length 399");
  EXPECT_TRUE(both[0].match().status.ok());
  EXPECT_TRUE(NothingIsHeld()) << "not even an announcement";
}

TEST_P(SetTest, RanksBeginAtOneLengthWithTheirOwnBytes) {
  Start({RankSpace(0), RankSpace(1)});
  Store(0, 400);
  Store(1, 250);
  std::vector<Lease> ranks = AcquireAll();
  ASSERT_EQ(WaitAll(ranks), 250u);
  Check(ranks, 250);
}

// A damaged page of one member: what all still have is right, and what is computed again heals it.
TEST_P(SetTest, APageThatTurnsOutBadShortensAllOfThem) {
  for (const bool hybrid : {false, true}) {
    damage_ = false;
    Start(hybrid ? std::vector<SpaceSpec>{TargetSpace(), DraftSpace()}
                 : std::vector<SpaceSpec>{RankSpace(0), RankSpace(1)});
    for (size_t member = 0; member < 2; ++member) Store(member, 400);
    damage_ = true;
    Restart();
    std::vector<Lease> set = AcquireAll();
    const uint32_t usable = WaitAll(set);
    EXPECT_LT(usable, 399u) << "nothing was hit";
    if (usable > 0) Check(set, usable);
    uint32_t healed = 0;
    // A page that was still being read when the missing ones were planned may turn out bad later.
    for (int i = 0; i < 4 && healed < 399; ++i) {
      set.clear();
      for (size_t member = 0; member < 2; ++member) Store(member, 400);
      set = AcquireAll();
      healed = WaitAll(set);
    }
    ASSERT_EQ(healed, 399u);
    Check(set, 399);
    set.clear();
    EXPECT_TRUE(NothingIsHeld());
    spaces_.clear();
    client_.reset();
    daemon_.reset();
    std::filesystem::remove(arena_.path());
    std::filesystem::remove_all(directory_.path() + "/ssd");
  }
}

TEST_P(SetTest, WithoutADaemonTheLeasesAreEmptyAndSayWhy) {
  specs_ = {RankSpace(0), DraftSpace()};
  client_.emplace(ClientOptions{.address = directory_.address(),
                                .connect_deadline = std::chrono::milliseconds(50)});
  for (const SpaceSpec& spec : specs_) {
    Result<Space> space = client_->OpenSpace(spec);
    spaces_.push_back(std::move(space.value()));
  }
  std::vector<Lease> both = AcquireAll();
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(WaitAll(both), 0u);
  EXPECT_FALSE(both[0].match().status.ok());
  EXPECT_FALSE(both[1].match().status.ok());
  Client stranger(
      {.address = directory_.address(), .connect_deadline = std::chrono::milliseconds(50)});
  const SetMember anothers{&spaces_[0], {}};
  EXPECT_TRUE(stranger.AcquireSet({&anothers, 1}, tokens_).empty()) << "another client's";
}

INSTANTIATE_TEST_SUITE_P(Arena, SetTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "InPlace" : "Copied"; });

// A daemon that gives a set something else than one length: nothing of it is used or kept.
TEST(BadSetTest, AnswersThatAreNoSetAreGivenBack) {
  TempDirectory directory;
  PlayedDaemon daemon(directory.address());
  const SpaceSpec spec = SmallSpace(MlxAffine(8, 64, Dtype::kF16));
  Client client({.address = directory.address()});
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  const std::vector<uint32_t> tokens = Tokens(192, 1);
  const std::vector<SetMember> members = {{&space.value(), {}}, {&space.value(), {}}};
  const auto begin = [&] {
    const std::vector<Lease> set = client.AcquireSet(members, tokens);
    EXPECT_EQ(set.size(), 2u);
    EXPECT_EQ(set[0].restorable_tokens(), 0u);
    return set[1].match().status.message;
  };
  EXPECT_EQ(begin(), "begin: the daemon gave 1 answers to 2 items");
  daemon.change_answer = [](v1::AcquireReply* reply) {
    *reply->add_answers() = reply->answers(0);
    reply->mutable_answers(1)->set_lease(2);
    reply->mutable_answers(1)->set_restorable_tokens(128);
  };
  EXPECT_EQ(begin(), "begin: the daemon gave a set answers of 192 and 128 tokens");
  daemon.change_answer = [](v1::AcquireReply* reply) {
    *reply->add_answers() = reply->answers(0);
    reply->mutable_answers(1)->set_lease(3);
    reply->mutable_answers(1)->mutable_pages(0)->clear_rung();
  };
  EXPECT_NE(begin(), "");
  // All three leases 1, and 2 and 3, come back.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::vector<uint64_t> released;
  while (released.size() < 5 && std::chrono::steady_clock::now() < end) {
    released = daemon.released();
    std::this_thread::yield();
  }
  std::ranges::sort(released);
  EXPECT_EQ(released, (std::vector<uint64_t>{1, 1, 1, 2, 3}));
}

}  // namespace
}  // namespace prefixd
