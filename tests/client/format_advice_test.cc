// New blocks in a coarser format while the daemon advises it, for sequences that want it.
#include <optional>

#include "tests/client/daemon.h"
#include "tests/client/packed_cache.h"

namespace prefixd {
namespace {

constexpr uint32_t kRaw = 0, kEight = 1, kFour = 2;

class FormatAdviceTest : public testing::TestWithParam<bool> {
 protected:
  // The rule that is quick to reach: a share of RAM in use.
  FormatAdviceTest() {
    for (LayerSpec& layer : spec_.layers) {
      layer.formats = {Raw(Dtype::kF16), MlxAffine(8, 64, Dtype::kF16),
                       MlxAffine(4, 64, Dtype::kF16)};
    }
    daemon_.emplace(directory_.socket(), DaemonOptions{.arena = GetParam() ? arena_.path() : "",
                                                       .ram_bytes = uint64_t{64} << 20,
                                                       .coarser_above = 0.3});
    client_.emplace(ClientOptions{.address = directory_.address(), .staging_bytes = 4 << 20});
    Result<Space> space = client_->OpenSpace(spec_);
    EXPECT_TRUE(space.ok()) << space.status.message;
    space_ = std::move(space.value());
  }
  uint64_t Count(const std::string& name) {
    for (const block::NamedCount& count : daemon_->cache().GetStats().counters) {
      if (count.name == name) return count.value;
    }
    return 0;
  }
  // Until the daemon advises a coarser format.
  void Fill() {
    for (uint32_t seed = 100; Count("advice.coarser") == 0; ++seed) {
      ASSERT_LT(seed, 200u);
      const std::vector<uint32_t> tokens = Tokens(640, seed);
      Sequence seq = space_.Begin(tokens, {.write_format = kRaw});
      AppendTokens(seq, spec_, tokens, 0, 640);
      ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
    }
  }
  static std::vector<uint32_t> Formats(Sequence& seq, int layer) {
    std::vector<uint32_t> formats;
    for (const BlockTableEntry& block : seq.block_table(layer)) formats.push_back(block.format);
    return formats;
  }

  TempDirectory directory_;
  ArenaPath arena_;
  SpaceSpec spec_ = SmallSpace(Raw(Dtype::kF16));
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
  Space space_;
  const std::vector<uint32_t> tokens_ = Tokens(400, 1);
};

// S1-39
TEST_P(FormatAdviceTest, NewBlocksOfWhoWantsItAreCoarserWhileItIsAdvised) {
  const std::vector<uint32_t> start(tokens_.begin(), tokens_.begin() + 100);
  const BeginOptions options{.write_format = kRaw,
                             .coarser_formats = uint64_t{1} << kEight | uint64_t{1} << kFour};
  {
    Sequence seq = space_.Begin(start, options);
    AppendTokens(seq, spec_, start, 0, 100);
    EXPECT_EQ(Formats(seq, 0), (std::vector<uint32_t>{kRaw, kRaw})) << "nothing is advised yet";
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  }
  EXPECT_EQ(client_->stats().coarser_blocks, 0u);
  Fill();
  // One that did not ask for it writes what it always wrote.
  const std::vector<uint32_t> other = Tokens(200, 9);
  Sequence plain = space_.Begin(other, {.write_format = kRaw});
  AppendTokens(plain, spec_, other, 0, 200);
  EXPECT_EQ(Formats(plain, 0), (std::vector<uint32_t>(4, kRaw)));
  EXPECT_EQ(client_->stats().coarser_blocks, 0u);
  // The block that begins with stored tokens keeps their format; the next ones are coarser, also
  // those that are begun long after the lookup.
  const std::vector<uint32_t> prompt(tokens_.begin(), tokens_.begin() + 300);
  Sequence seq = space_.Begin(prompt, options);
  ASSERT_EQ(seq.WaitAll(), 100u);
  AppendTokens(seq, spec_, tokens_, 100, 300);
  std::vector<uint32_t> expected = {kRaw, kRaw, kEight, kEight, kEight};
  for (int layer = 0; layer < 3; ++layer) EXPECT_EQ(Formats(seq, layer), expected) << layer;
  for (uint32_t at = 300; at < 400; ++at) {
    seq.PushToken(tokens_[at]);
    AppendTokens(seq, spec_, tokens_, at, at + 1);
    if ((at + 1) % 64 == 0) {
      const Result<CommitInfo> stored = seq.Commit();
      ASSERT_TRUE(stored.ok()) << stored.status.message;
    }
  }
  expected = {kRaw, kRaw, kEight, kEight, kEight, kEight, kEight};
  EXPECT_EQ(Formats(seq, 1), expected);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  EXPECT_EQ(client_->stats().coarser_blocks, 5u);
  EXPECT_GT(Count("advice.coarser_pages"), 0u);
  // What was stored is what comes back.
  Sequence again = space_.Begin(tokens_, options);
  ASSERT_EQ(again.WaitAll(), 400u) << again.match().why_shorter;
  EXPECT_EQ(Formats(again, 1), expected);
  const LayerSpec& l = spec_.layers[1];
  Packed k(l.formats[kEight].key, l.kv_heads, l.key_dim, 272), k2 = k;
  Packed v(l.formats[kEight].value, l.kv_heads, l.value_dim, 272), v2 = v;
  ASSERT_TRUE(again.Gather(1, 128, 272, k.view(), v.view()).ok());
  ASSERT_TRUE(seq.Gather(1, 128, 272, k2.view(), v2.view()).ok());
  EXPECT_EQ(k, k2);
  EXPECT_EQ(v, v2);
}

TEST_P(FormatAdviceTest, TheAdviceIsOneStepAndNeverTouchesTheHeadOrPackedBytes) {
  Fill();
  Sequence seq = space_.Begin(tokens_, {.write_format = kEight,
                                        .head_tokens = 130,
                                        .head_format = kRaw,
                                        .coarser_formats = uint64_t{1} << kFour});
  AppendTokens(seq, spec_, tokens_, 0, 400);
  EXPECT_EQ(Formats(seq, 2),
            (std::vector<uint32_t>{kRaw, kRaw, kFour, kFour, kFour, kFour, kFour}));
  const LayerSpec& l = spec_.layers[0];
  const Packed k(l.formats[kFour].key, l.kv_heads, l.key_dim, 64);
  const Packed v(l.formats[kFour].value, l.kv_heads, l.value_dim, 64);
  EXPECT_EQ(seq.WritePacked(0, 128, 64, k.view(), v.view()).code, StatusCode::kFailedPrecondition);
}

// An engine that owns its KV memory is told the format run by run.
TEST_P(FormatAdviceTest, APlanSaysInWhichFormatItsRunsAreWanted) {
  const std::vector<uint32_t> start(tokens_.begin(), tokens_.begin() + 100);
  const PackedCache eight(spec_, 400, 7, kEight), four(spec_, 400, 8, kFour);
  const ReserveOptions options{.write_format = kEight, .coarser_formats = uint64_t{1} << kFour};
  {
    Plan plan = space_.Reserve(start, options);
    ASSERT_EQ(plan.missing().size(), 1u);
    EXPECT_EQ(plan.missing()[0].format, kEight);
    WriteRun(plan, spec_, eight, plan.missing()[0]);
    ASSERT_TRUE(plan.Commit(100, {.sequence_end = true}).ok());
  }
  Fill();
  Plan plan = space_.Reserve(tokens_, options);
  const std::vector<TokenRun> runs(plan.missing().begin(), plan.missing().end());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].end, 128u);
  EXPECT_EQ(runs[0].format, kEight) << "it begins with stored tokens";
  EXPECT_EQ(runs[1].format, kFour);
  EXPECT_EQ(plan.WritePacked(0, 64, 336, four.key(0, 64), four.value(0, 64)).code,
            StatusCode::kFailedPrecondition)
      << "two formats";
  for (const TokenRun& run : runs) {
    WriteRun(plan, spec_, run.format == kFour ? four : eight, run);
    const Result<CommitInfo> stored = plan.Commit(run.end, {.sequence_end = run.end == 400});
    ASSERT_TRUE(stored.ok()) << stored.status.message;
  }
  EXPECT_EQ(client_->stats().coarser_blocks, 5u);
  Lease lease = space_.Acquire(tokens_);
  ASSERT_EQ(lease.WaitAll(), 400u);
  const LayerSpec& l = spec_.layers[1];
  Packed k(l.formats[kFour].key, l.kv_heads, l.key_dim, 400 - 128);
  Packed v(l.formats[kFour].value, l.kv_heads, l.value_dim, 400 - 128);
  ASSERT_TRUE(lease.Gather(1, 128, 400 - 128, k.view(), v.view()).ok());
  const RowBytes row = BytesOfRow(l.formats[kFour].key, l.key_dim);
  EXPECT_EQ(std::memcmp(k.codes.data(), four.key(1, 128).codes, row.codes), 0);
}

INSTANTIATE_TEST_SUITE_P(Arena, FormatAdviceTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "InPlace" : "Copied"; });

}  // namespace
}  // namespace prefixd
