// The fixed prefill grid: tokens that come from the cache change no bit of what follows.
#include <gtest/gtest.h>

#include <cstring>

#include "client/worker/synthetic.h"
#include "kernels/prefill/attend_slice.h"
#include "tests/worker/shipped_model.h"

namespace prefixd::worker {
namespace {

constexpr uint32_t kDecoded = 5;

// Packed K or V of one layer: [kv_heads, tokens, bytes of a row], dense.
struct Packed {
  Packed(const TensorFormat& format, uint32_t dim, uint32_t heads, uint32_t tokens)
      : row(BytesOfRow(format, dim)),
        tokens(tokens),
        codes(size_t{heads} * tokens * row.codes),
        scales(size_t{heads} * tokens * row.scales),
        biases(size_t{heads} * tokens * row.biases) {}
  MutablePackedView View() {
    return {.codes = codes.data(),
            .scales = scales.data(),
            .biases = biases.data(),
            .codes_head_stride = size_t{tokens} * row.codes,
            .codes_token_stride = row.codes,
            .scales_head_stride = size_t{tokens} * row.scales,
            .scales_token_stride = row.scales};
  }
  PackedView ConstView() const {
    return {.codes = codes.data(),
            .scales = scales.data(),
            .biases = biases.data(),
            .codes_head_stride = size_t{tokens} * row.codes,
            .codes_token_stride = row.codes,
            .scales_head_stride = size_t{tokens} * row.scales,
            .scales_token_stride = row.scales};
  }
  RowBytes row;
  uint32_t tokens;
  std::vector<std::byte> codes, scales, biases;
};

// What a hit does: the stored bytes of the first `tokens` tokens, and no computing.
void CopyPrefix(const Rig& rig, const KvFormat& format, Sequence& from, Sequence& to,
                uint32_t tokens) {
  const ModelConfig& config = rig.model.config();
  for (int layer = 0; layer < static_cast<int>(config.layers); ++layer) {
    Packed key(format.key, config.head_dim, config.kv_heads, tokens);
    Packed value(format.value, config.head_dim, config.kv_heads, tokens);
    const Status gathered = from.Gather(layer, 0, tokens, key.View(), value.View());
    ASSERT_TRUE(gathered.ok()) << gathered.message;
    const Status written = to.WritePacked(layer, 0, tokens, key.ConstView(), value.ConstView());
    ASSERT_TRUE(written.ok()) << written.message;
  }
}

// Logits of the last prompt token, then of some tokens decoded after it.
std::vector<std::vector<float>> Continue(Rig& rig, Sequence& sequence, std::vector<uint32_t> tokens,
                                         uint32_t from) {
  const auto prompt = static_cast<uint32_t>(tokens.size());
  rig.Prefill(sequence, tokens, from, prompt);
  std::vector<std::vector<float>> logits = {rig.Logits(prompt - 1)};
  for (uint32_t i = 0; i < kDecoded; ++i) {
    tokens.push_back(100 + i);
    rig.Decode(sequence, tokens);
    logits.push_back(rig.Logits(prompt + i));
  }
  return logits;
}

bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return a.size() == b.size();
}

void ExpectHitsEqualCold(Rig& rig, const KvFormat& format, const std::vector<uint32_t>& tokens,
                         const std::vector<uint32_t>& hits) {
  Sequence cold = rig.cache.space.Begin(tokens);
  const auto want = Continue(rig, cold, tokens, 0);
  for (uint32_t hit : hits) {
    SCOPED_TRACE(testing::Message() << "hit of " << hit << " tokens");
    Sequence warm = rig.cache.space.Begin(tokens);
    ASSERT_NO_FATAL_FAILURE(CopyPrefix(rig, format, cold, warm, hit));
    EXPECT_TRUE(SameBits(Continue(rig, warm, tokens, hit), want));
  }
}

TEST(GridTest, HitOfAnyLengthEqualsColdBitForBitInRawF32) {
  const KvFormat format = Raw(Dtype::kF32);
  const auto rig = ShippedRig(format);
  ExpectHitsEqualCold(*rig, format, HeldOutTokens(200), {1, 17, 63, 64, 65, 127, 128, 199});
}

TEST(GridTest, HitOfAnyLengthEqualsColdBitForBitInEightBits) {
  const KvFormat format = MlxAffine(8, 64, Dtype::kF16);
  const auto rig = ShippedRig(format);
  ExpectHitsEqualCold(*rig, format, HeldOutTokens(200), {1, 17, 63, 64, 65, 127, 128, 199});
}

TEST(GridTest, HitOfAnyLengthEqualsColdBitForBitOnOneThread) {
  const KvFormat format = MlxAffine(8, 64, 4, 32, Dtype::kF16);
  const auto rig = ShippedRig(format, /*threads=*/1);
  ExpectHitsEqualCold(*rig, format, HeldOutTokens(130), {1, 17, 63, 64, 65, 129});
}

TEST(GridTest, HitOfAnyLengthEqualsColdBitForBitRotated) {
  const KvFormat format = Rotated(MlxAffine(8, 64, 4, 64, Dtype::kF16));
  const auto rig = ShippedRig(format);
  ExpectHitsEqualCold(*rig, format, HeldOutTokens(130), {1, 63, 64, 129});
}

// q . k and the sum of values are what they were: raw f32 answers as it does without a rotation.
TEST(GridTest, RotationChangesRawAnswersByRoundingOnly) {
  const std::vector<uint32_t> tokens = HeldOutTokens(200);
  const auto logits = [&](const KvFormat& format) {
    const auto rig = ShippedRig(format);
    Sequence sequence = rig->cache.space.Begin(tokens);
    return Continue(*rig, sequence, tokens, 0);
  };
  const auto plain = logits(Raw(Dtype::kF32)), rotated = logits(Rotated(Raw(Dtype::kF32)));
  EXPECT_FALSE(SameBits(plain, rotated)) << "nothing was rotated";
  for (size_t i = 0; i < plain.size(); ++i) {
    for (size_t token = 0; token < plain[i].size(); ++token) {
      ASSERT_NEAR(rotated[i][token], plain[i][token], 2e-3) << "step " << i;
    }
  }
}

TEST(GridTest, HitOfAnyLengthEqualsColdBitForBitTiledAndFast) {
  const KvFormat format = Tiled(MlxAffine(8, 64, 4, 64, Dtype::kF16));
  const auto rig =
      ShippedRig(format, 2, {.prefill = AttendMode::kFastPrefill, .decode = AttendMode::kFast});
  ExpectHitsEqualCold(*rig, format, HeldOutTokens(130), {1, 17, 63, 64, 65, 129});
}

TEST(GridTest, FastPrefillIsOtherBitsAndNearlyTheSameAnswer) {
  if (!kernels::MultipliesCodes()) GTEST_SKIP() << "this machine has no faster arithmetic";
  const KvFormat format = Tiled(MlxAffine(8, 64, 4, 64, Dtype::kF16));
  const std::vector<uint32_t> tokens = HeldOutTokens(130);
  const auto logits = [&](AttendMode prefill) {
    const auto rig = ShippedRig(format, 2, {.prefill = prefill});
    Sequence sequence = rig->cache.space.Begin(tokens);
    return Continue(*rig, sequence, tokens, 0);
  };
  const auto precise = logits(AttendMode::kPrecise), fast = logits(AttendMode::kFastPrefill);
  EXPECT_FALSE(SameBits(precise, fast)) << "the mode does not arrive";
  for (size_t i = 0; i < precise.size(); ++i) {
    for (size_t token = 0; token < precise[i].size(); ++token) {
      ASSERT_NEAR(fast[i][token], precise[i][token], 0.5) << "step " << i;
    }
  }
}

// The layout is part of the space and nothing else: precise answers are the same bits.
TEST(GridTest, TiledPagesGiveTheBitsOfRows) {
  const std::vector<uint32_t> tokens = HeldOutTokens(200);
  for (const KvFormat& format :
       {MlxAffine(8, 64, Dtype::kF16), MlxAffine(8, 64, 4, 64, Dtype::kF16),
        Ggml(Codec::kQ8_0, Codec::kQ4_0)}) {
    const auto logits = [&](const KvFormat& laid_out) {
      const auto rig = ShippedRig(laid_out);
      Sequence sequence = rig->cache.space.Begin(tokens);
      return Continue(*rig, sequence, tokens, 0);
    };
    EXPECT_TRUE(SameBits(logits(format), logits(Tiled(format))));
  }
}

TEST(GridTest, HitEqualsColdBitForBitInTheGeometryOfABigModel) {
  const KvFormat format = MlxAffine(8, 128, Dtype::kBf16);
  const absl::StatusOr<ModelConfig> config = SyntheticConfig("qwen3-0.6b", 1);
  ASSERT_TRUE(config.ok());
  Rig rig(*config, SyntheticWeights(*config), format);
  std::vector<uint32_t> tokens;
  for (uint32_t i = 0; i < 70; ++i) tokens.push_back((i * 7919) % config->vocab_size);
  ExpectHitsEqualCold(rig, format, tokens, {1, 17, 63, 64, 65, 69});
}

TEST(GridTest, StepsThatLeaveTheGridAreRefused) {
  const auto rig = ShippedRig(Raw(Dtype::kF32));
  const std::vector<uint32_t> tokens = HeldOutTokens(100);
  Sequence sequence = rig->cache.space.Begin(tokens);
  const auto crossing = rig->model.Prefill(sequence, {.tokens = tokens, .begin = 0, .end = 65});
  EXPECT_EQ(crossing.status().message(),
            "model: step from 0 to 65 of 100 tokens leaves the grid of 64");
  EXPECT_FALSE(rig->model.Prefill(sequence, {.tokens = tokens, .begin = 5, .end = 5}).ok());
  EXPECT_FALSE(rig->model.Prefill(sequence, {.tokens = tokens, .begin = 90, .end = 101}).ok());
  EXPECT_FALSE(rig->model.Decode(sequence, {.tokens = tokens, .begin = 0, .end = 2}).ok());
}

}  // namespace
}  // namespace prefixd::worker
