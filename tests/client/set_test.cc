// One request in several spaces: the ranks of a model, a draft beside its target. All begin at one
// length, with the bytes that are theirs.
#include "prefixd/set.h"

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
    const uint32_t cached = seq.WaitAll();
    Compute(member, seq, cached, count);
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    ASSERT_TRUE(stored.ok()) << stored.status.message;
  }
  SequenceSet BeginAll(uint32_t max_tokens = 399) {
    std::vector<SetMember> members;
    for (Space& space : spaces_) members.push_back({&space, {.max_cached_tokens = max_tokens}});
    return SequenceSet::Begin(*client_, members, tokens_);
  }
  // What each layer holds in the blocks that it has is what a sequence alone computes.
  void Check(SequenceSet& set, uint32_t cached) {
    if (cached == 0) return;
    for (size_t member = 0; member < set.size(); ++member) {
      const SpaceSpec& spec = specs_[member];
      Sequence alone = spaces_[member].Begin(tokens_, {.max_cached_tokens = 0});
      Compute(member, alone, 0, cached);
      for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
        const LayerSpec& l = spec.layers[layer];
        const int index = static_cast<int>(layer);
        if (l.kind == LayerKind::kState) {
          const uint32_t at = set[member].restorable_tokens();
          if (at == 0) continue;
          std::vector<std::byte> state(kStateBytes);
          EXPECT_TRUE(set[member].GetState(index, state).ok());
          EXPECT_EQ(state, StateOf(tokens_, at));
          continue;
        }
        uint32_t begin = 0;
        for (const BlockTableEntry& block : set[member].block_table(index)) {
          if (block.units != nullptr) {
            Packed k(l.formats[0].key, l.kv_heads, l.key_dim, block.tokens), k2 = k;
            Packed v(l.formats[0].value, l.kv_heads, l.value_dim, block.tokens), v2 = v;
            EXPECT_TRUE(set[member].Gather(index, begin, block.tokens, k.view(), v.view()).ok());
            EXPECT_TRUE(alone.Gather(index, begin, block.tokens, k2.view(), v2.view()).ok());
            EXPECT_EQ(k, k2);
            EXPECT_EQ(v, v2);
          }
          begin += block.tokens;
        }
        EXPECT_EQ(begin, cached);
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
    SequenceSet both = BeginAll();
    ASSERT_EQ(both.size(), 2u);
    ASSERT_EQ(both.WaitAll(), 256u) << both[0].match().why_shorter;  // a snapshot of the lattice
    EXPECT_EQ(both[0].match().why_shorter, "max_tokens 1, common_length 143");
    EXPECT_EQ(both[1].match().why_shorter, "common_length 44");
    Check(both, 256);
    for (size_t member = 0; member < 2; ++member) Compute(member, both[member], 256, 400);
    Check(both, 400);
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
  SequenceSet both =
      SequenceSet::Begin(*client_, {{&spaces_[0], {.max_cached_tokens = 299}}, {&spaces_[1], {}}},
                         std::span(tokens_).first(300));
  EXPECT_EQ(both.WaitAll(), 0u);
  for (size_t member = 0; member < 2; ++member) {
    Compute(member, both[member], 0, 300);
    const Result<CommitInfo> stored = both[member].Commit({.sequence_end = true});
    ASSERT_TRUE(stored.ok()) << stored.status.message;
    EXPECT_EQ(stored.value().stored_tokens, 300u);
  }
  EXPECT_EQ(both.Extend(std::span(tokens_).subspan(300)), 300u);
  for (size_t member = 0; member < 2; ++member) Compute(member, both[member], 300, 400);
  Check(both, 400);
  both = {};
  SequenceSet again = BeginAll();
  EXPECT_EQ(again.WaitAll(), 299u);
}

TEST_P(SetTest, WhereTheDraftHasNothingNothingIsRestored) {
  Start({TargetSpace(), DraftSpace()});
  Store(0, 400);
  SequenceSet both = BeginAll();
  EXPECT_EQ(both.restorable_tokens(), 0u);
  EXPECT_EQ(both[0].match().matched_tokens, 400u);
  EXPECT_EQ(both[0].match().why_shorter, "max_tokens 1, common_length 399");
  EXPECT_TRUE(both[0].match().status.ok());
  Compute(0, both[0], 0, 400);
  both = {};
  EXPECT_TRUE(NothingIsHeld());
}

// One process asks for all ranks; each rank's own process takes part in its rank's lease.
TEST_P(SetTest, RanksJoinWhatOneOfThemAskedFor) {
  Start({RankSpace(0), RankSpace(1)});
  Store(0, 400);
  Store(1, 250);
  SequenceSet ranks = BeginAll();
  ASSERT_EQ(ranks.WaitAll(), 250u);
  Client other({.address = directory_.address(), .name = "rank-1"});
  Result<Space> space = other.OpenSpace(RankSpace(1));
  ASSERT_TRUE(space.ok()) << space.status.message;
  const Result<std::string> ticket = ranks[1].Share();
  ASSERT_TRUE(ticket.ok()) << ticket.status.message;
  Sequence joined = space.value().Join(ticket.value());
  ASSERT_EQ(joined.WaitAll(), 250u) << joined.match().status.message;
  EXPECT_EQ(GatherAll(joined, specs_[1], 250), GatherAll(ranks[1], specs_[1], 250));
  const std::vector<Lease> leases =
      SequenceSet::Acquire(*client_, {{&spaces_[0], {}}, {&spaces_[1], {}}}, tokens_);
  ASSERT_EQ(leases.size(), 2u);
  EXPECT_EQ(leases[0].restorable_tokens(), 250u);
  EXPECT_EQ(leases[1].restorable_tokens(), 250u);
}

// A damaged page of one member: all go back to one length, and what is computed again heals it.
TEST_P(SetTest, APageThatTurnsOutBadShortensAllOfThem) {
  for (const bool hybrid : {false, true}) {
    damage_ = false;
    Start(hybrid ? std::vector<SpaceSpec>{TargetSpace(), DraftSpace()}
                 : std::vector<SpaceSpec>{RankSpace(0), RankSpace(1)});
    for (size_t member = 0; member < 2; ++member) Store(member, 400);
    damage_ = true;
    Restart();
    SequenceSet set = BeginAll();
    const uint32_t usable = set.WaitAll();
    EXPECT_LT(usable, 399u) << "nothing was hit";
    uint32_t cached = set.Restart();
    while (set.WaitAll() < cached) cached = set.Restart();  // more than one page was hit
    for (size_t member = 0; member < 2; ++member) {
      EXPECT_EQ(set[member].restorable_tokens(), cached);
    }
    Check(set, cached);
    for (size_t member = 0; member < 2; ++member) {
      Compute(member, set[member], cached, 400);
      const Result<CommitInfo> stored = set[member].Commit({.sequence_end = true});
      EXPECT_TRUE(stored.ok()) << stored.status.message;
    }
    set = {};
    SequenceSet healed = BeginAll();
    EXPECT_EQ(healed.WaitAll(), 399u);
    healed = {};
    EXPECT_TRUE(NothingIsHeld());
    spaces_.clear();
    client_.reset();
    daemon_.reset();
    std::filesystem::remove(arena_.path());
    std::filesystem::remove_all(directory_.path() + "/ssd");
  }
}

TEST_P(SetTest, WithoutADaemonEachMemberIsAPrivateCache) {
  specs_ = {RankSpace(0), DraftSpace()};
  client_.emplace(ClientOptions{.address = directory_.address(),
                                .connect_deadline = std::chrono::milliseconds(50)});
  for (const SpaceSpec& spec : specs_) {
    Result<Space> space = client_->OpenSpace(spec);
    spaces_.push_back(std::move(space.value()));
  }
  SequenceSet both = BeginAll();
  EXPECT_EQ(both.WaitAll(), 0u);
  EXPECT_EQ(both.Restart(), 0u);
  EXPECT_FALSE(both[0].match().status.ok());
  for (size_t member = 0; member < 2; ++member) Compute(member, both[member], 0, 100);
  EXPECT_EQ(both[1].block_table(0).size(), 4u) << "blocks of 32 tokens";
  Client stranger(
      {.address = directory_.address(), .connect_deadline = std::chrono::milliseconds(50)});
  EXPECT_EQ(SequenceSet::Begin(stranger, {{&spaces_[0], {}}}, tokens_).size(), 0u)
      << "another client's";
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
    SequenceSet set = SequenceSet::Begin(client, members, tokens);
    EXPECT_EQ(set.size(), 2u);
    EXPECT_EQ(set.restorable_tokens(), 0u);
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
