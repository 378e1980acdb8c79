// formats.md 1.2: the bytes of MLX's modes mxfp4, mxfp8 and nvfp4.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

class BlockFloatGolden : public testing::TestWithParam<Codec> {
 protected:
  const TensorFormat format_ = BlockFloatFormat(GetParam());
  const UnitLayout layout_ = LayoutOfUnit(format_, kGoldenDim, kGoldenRows);
  const std::vector<std::byte> golden_ = ReadGolden("mlx/" + ToString(format_) + ".bin");

  // Rows of which MLX's CPU makes nothing sensible: tests/data/mlx/README.md.
  bool IsArtefact(uint32_t row) const {
    if (GetParam() == Codec::kNvFp4) return row == 20 || row == 21;
    return row == 12 || row == 13;
  }
};

TEST_P(BlockFloatGolden, CodesAndScalesEqualMlx) {
  const std::vector<float> input = ReadGoldenFloats("mlx/input_f32.bin", Dtype::kF32);
  const std::vector<std::byte> seen = QuantizeRows(format_, input, kGoldenDim);
  ASSERT_GE(golden_.size(), layout_.payload_bytes);
  const RowBytes bytes = BytesOfStoredRow(format_, kGoldenDim);
  for (uint32_t row = 0; row < kGoldenRows; ++row) {
    if (IsArtefact(row)) continue;
    SCOPED_TRACE(row);
    const auto part = [&](std::span<const std::byte> unit, uint64_t offset, uint32_t count) {
      return unit.subspan(offset + uint64_t{row} * count, count);
    };
    ExpectSameBytes(part(seen, layout_.scales_offset, bytes.scales),
                    part(golden_, layout_.scales_offset, bytes.scales));
    ExpectSameBytes(part(seen, layout_.codes_offset, bytes.codes),
                    part(golden_, layout_.codes_offset, bytes.codes));
  }
}

TEST_P(BlockFloatGolden, DequantizedValuesEqualMlx) {
  const std::vector<float> seen = DequantizeRows(format_, golden_, kGoldenDim, kGoldenRows);
  const auto values = std::span(golden_).subspan(layout_.payload_bytes);
  ASSERT_EQ(values.size(), seen.size() * 2);
  std::vector<float> expected(seen.size());
  WidenToFloat(Dtype::kBf16, values.data(), expected.size(), expected.data());
  ExpectSameFloats(seen, expected);
}

INSTANTIATE_TEST_SUITE_P(Modes, BlockFloatGolden,
                         testing::Values(Codec::kMxFp4, Codec::kMxFp8, Codec::kNvFp4),
                         [](const auto& param_info) {
                           return ToString(BlockFloatFormat(param_info.param));
                         });

// One group of `value` and zeros, and the value that comes back.
float RoundTrip(Codec codec, float value) {
  const TensorFormat format = BlockFloatFormat(codec);
  std::vector<float> row(format.group_size);
  row[1] = value;
  const std::vector<std::byte> unit = QuantizeRows(format, row, format.group_size);
  return DequantizeRows(format, unit, format.group_size, 1)[1];
}

TEST(BlockFloatTest, TheScaleIsRoundedSoTheLargestElementMaySaturate) {
  EXPECT_EQ(RoundTrip(Codec::kMxFp4, 6), 6);
  EXPECT_EQ(RoundTrip(Codec::kMxFp4, 8.4f), 6) << "8.4 / 6 is 1.4: nearer to 1 than to 2";
  EXPECT_EQ(RoundTrip(Codec::kMxFp4, 8.6f), 8) << "... 1.43: nearer to 2, which has 4 times 2";
  EXPECT_EQ(RoundTrip(Codec::kMxFp8, 448), 448);
  EXPECT_EQ(RoundTrip(Codec::kNvFp4, -6), -6);
}

TEST(BlockFloatTest, TinyAndHugeGroupsStayFiniteAndNear) {
  for (const Codec codec : {Codec::kMxFp4, Codec::kMxFp8, Codec::kNvFp4}) {
    SCOPED_TRACE(ToString(BlockFloatFormat(codec)));
    EXPECT_LE(std::fabs(RoundTrip(codec, 1e-39f)), 1e-38f);
    const float largest = codec == Codec::kNvFp4 ? 2688.0f : 2e38f;
    EXPECT_GE(RoundTrip(codec, 3e38f), largest);
    EXPECT_LE(RoundTrip(codec, -3e38f), -largest);
    EXPECT_TRUE(std::isfinite(RoundTrip(codec, 3e38f)));
  }
}

// Ties of e2m1 go to the smaller magnitude; what rounds to zero is +0.
TEST(BlockFloatTest, TiesOfFourBitsGoDown) {
  const TensorFormat format = BlockFloatFormat(Codec::kMxFp4);
  std::vector<float> row(32);
  const float values[] = {6, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, -0.25f, -0.75f, -5};
  const float expected[] = {6, 0, 0.5f, 1, 1.5f, 2, 3, 4, 0, -0.5f, -4};
  std::copy(std::begin(values), std::end(values), row.begin());
  const std::vector<float> seen = DequantizeRows(format, QuantizeRows(format, row, 32), 32, 1);
  for (size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(seen[i]), std::bit_cast<uint32_t>(expected[i])) << values[i];
  }
}

// Every code times every scale: a float holds it exactly, and a bfloat16 where it is not subnormal.
TEST(BlockFloatTest, EveryCodeAndScaleDecodesExactly) {
  for (const Codec codec : {Codec::kMxFp4, Codec::kMxFp8, Codec::kNvFp4}) {
    const TensorFormat format = BlockFloatFormat(codec);
    const RowBytes bytes = BytesOfStoredRow(format, 256);
    std::vector<std::byte> codes(bytes.codes), scales(bytes.scales);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
    for (uint32_t scale = 0; scale < 255; ++scale) {
      std::fill(scales.begin(), scales.end(), static_cast<std::byte>(scale));
      std::vector<float> row(256);
      DequantizeRow(format, {codes.data(), scales.data(), nullptr}, row);
      for (const float value : row) {
        if (!std::isnormal(value)) continue;  // above the largest float, NaN of e4m3, below 2^-126
        EXPECT_EQ(Bf16ToFloat(FloatToBf16(value)), value) << "scale byte " << scale;
      }
    }
  }
}

}  // namespace
}  // namespace prefixd::quant
