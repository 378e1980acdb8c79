// One chain, several formats: blocks at a sequence's beginning raw, those behind them quantized.

#include "tests/client/restart.h"

namespace prefixd {
namespace {

constexpr uint32_t kFine = 0, kCoarse = 1;

class MixedFormatsTest : public RestartTest {
 protected:
  MixedFormatsTest() {
    for (LayerSpec& layer : spec_.layers) {
      layer.formats = {Raw(Dtype::kF16), MlxAffine(8, 64, Dtype::kF16)};
    }
    Start();
  }
  void Start() {
    StartDaemon();
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  // As after a reboot.
  void Restart() {
    space_ = {};
    StopDaemon();
    Start();
  }
  Sequence Store(const std::vector<uint32_t>& tokens, const BeginOptions& options,
                 uint32_t cached) {
    Sequence seq = space_.value().Begin(tokens, options);
    EXPECT_EQ(seq.WaitAll(), cached) << seq.match().status.message;
    AppendTokens(seq, spec_, tokens, cached, static_cast<uint32_t>(tokens.size()));
    const Result<CommitInfo> stored = seq.Commit({.sequence_end = true});
    EXPECT_TRUE(stored.ok()) << stored.status.message;
    return seq;
  }
  std::vector<uint32_t> Formats(Sequence& seq) {
    std::vector<uint32_t> formats;
    for (const BlockTableEntry& block : seq.block_table(0)) formats.push_back(block.format);
    return formats;
  }
  // Of every block of every layer, K then V, in the block's own format.
  std::vector<Packed> Blocks(Sequence& seq) {
    std::vector<Packed> all;
    for (uint32_t layer = 0; layer < spec_.layers.size(); ++layer) {
      const LayerSpec& l = spec_.layers[layer];
      uint32_t begin = 0;
      for (const BlockTableEntry& block : seq.block_table(static_cast<int>(layer))) {
        const KvFormat& format = l.formats[block.format];
        Packed k(format.key, l.kv_heads, l.key_dim, block.tokens);
        Packed v(format.value, l.kv_heads, l.value_dim, block.tokens);
        const Status status =
            seq.Gather(static_cast<int>(layer), begin, block.tokens, k.view(), v.view());
        EXPECT_TRUE(status.ok()) << status.message;
        all.push_back(std::move(k));
        all.push_back(std::move(v));
        begin += block.tokens;
      }
    }
    return all;
  }

  SpaceSpec spec_ = SmallSpace(Raw(Dtype::kF16));
  Result<Space> space_;
  const std::vector<uint32_t> tokens_ = Tokens(300, 1);
};

// S0-03 S3-03
TEST_P(MixedFormatsTest, BlocksBelowTheHeadAreRawTheOthersQuantizedAndAllComeBack) {
  const BeginOptions options{.write_format = kCoarse, .head_tokens = 130, .head_format = kFine};
  std::vector<Packed> written;
  {
    Sequence seq = Store(tokens_, options, 0);
    EXPECT_EQ(Formats(seq), (std::vector<uint32_t>{kFine, kFine, kCoarse, kCoarse, kCoarse}))
        << "the block that holds token 130 is not wholly below it";
    written = Blocks(seq);
  }
  Sequence again = space_.value().Begin(tokens_, options);
  ASSERT_EQ(again.WaitAll(), 300u);
  EXPECT_EQ(Formats(again), (std::vector<uint32_t>{kFine, kFine, kCoarse, kCoarse, kCoarse}));
  EXPECT_EQ(Blocks(again), written);
  again = {};
  Restart();
  Sequence restored = space_.value().Begin(tokens_, options);
  ASSERT_EQ(restored.WaitAll(), 300u);
  EXPECT_EQ(Blocks(restored), written);
}

// S1-04 S1-50
TEST_P(MixedFormatsTest, StoredBlocksStayWhatTheyAreForWhoWritesOtherwise) {
  const std::vector<uint32_t> first(tokens_.begin(), tokens_.begin() + 100);
  Store(first, {.write_format = kFine}, 0);
  Sequence seq = Store(tokens_, {.write_format = kCoarse}, 100);
  EXPECT_EQ(Formats(seq), (std::vector<uint32_t>{kFine, kFine, kCoarse, kCoarse, kCoarse}))
      << "the block that was begun goes on in its donor's format";
  Sequence again = space_.value().Begin(tokens_, {.write_format = kCoarse});
  ASSERT_EQ(again.WaitAll(), 300u);
  EXPECT_EQ(Formats(again), (std::vector<uint32_t>{kFine, kFine, kCoarse, kCoarse, kCoarse}));
  EXPECT_EQ(Blocks(again), Blocks(seq));
}

TEST_P(MixedFormatsTest, PackedBytesGoWhereTheirFormatIsWritten) {
  const BeginOptions options{.write_format = kCoarse, .head_tokens = 64, .head_format = kFine};
  Sequence seq = space_.value().Begin(tokens_, options);
  const LayerSpec& l = spec_.layers[0];
  const Packed raw_k(l.formats[kFine].key, l.kv_heads, l.key_dim, 64);
  const Packed raw_v(l.formats[kFine].value, l.kv_heads, l.value_dim, 64);
  const Packed k(l.formats[kCoarse].key, l.kv_heads, l.key_dim, 64);
  const Packed v(l.formats[kCoarse].value, l.kv_heads, l.value_dim, 64);
  EXPECT_EQ(seq.WritePacked(0, 0, 65, k.view(), v.view()).message,
            "write_packed: block 0 is written in format 0, block 1 in 1");
  ASSERT_TRUE(seq.WritePacked(0, 0, 64, raw_k.view(), raw_v.view()).ok());
  ASSERT_TRUE(seq.WritePacked(0, 64, 64, k.view(), v.view()).ok());
  EXPECT_EQ(Formats(seq), (std::vector<uint32_t>{kFine, kCoarse}));
}

INSTANTIATE_TEST_SUITE_P(Arena, MixedFormatsTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "InPlace" : "Copied"; });

}  // namespace
}  // namespace prefixd
