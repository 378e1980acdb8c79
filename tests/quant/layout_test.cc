// Sizes and offsets as numbers worked out by hand: a row of 128 elements is 128 * bits / 8 bytes of
// codes and 128 / group parameters each of scales and biases.
#include <gtest/gtest.h>

#include <initializer_list>

#include "quant/format.h"

namespace prefixd::quant {
namespace {

void ExpectRow(const TensorFormat& format, uint32_t dim, RowBytes expected) {
  const RowBytes row = BytesOfStoredRow(format, dim);
  EXPECT_EQ(row.codes, expected.codes) << ToString(format);
  EXPECT_EQ(row.scales, expected.scales) << ToString(format);
  EXPECT_EQ(row.biases, expected.biases) << ToString(format);
}

TEST(LayoutTest, RowBytesFollowTheFormula) {
  ExpectRow(RawFormat(Dtype::kF32), 128, {512, 0, 0});
  ExpectRow(RawFormat(Dtype::kBf16), 80, {160, 0, 0});
  ExpectRow(MlxAffineFormat(8, 64, Dtype::kF16), 128, {128, 4, 4});
  ExpectRow(MlxAffineFormat(6, 64, Dtype::kF16), 128, {96, 4, 4});
  ExpectRow(MlxAffineFormat(5, 32, Dtype::kF16), 96, {60, 6, 6});
  ExpectRow(MlxAffineFormat(4, 64, Dtype::kF32), 128, {64, 8, 8});
  ExpectRow(MlxAffineFormat(3, 128, Dtype::kBf16), 256, {96, 4, 4});
  ExpectRow(MlxAffineFormat(2, 32, Dtype::kF16), 32, {8, 2, 2});
  ExpectRow(GgmlFormat(Codec::kQ4_0), 128, {72, 0, 0});
  ExpectRow(GgmlFormat(Codec::kQ4_1), 128, {80, 0, 0});
  ExpectRow(GgmlFormat(Codec::kQ5_0), 128, {88, 0, 0});
  ExpectRow(GgmlFormat(Codec::kQ5_1), 128, {96, 0, 0});
  ExpectRow(GgmlFormat(Codec::kQ8_0), 128, {136, 0, 0});
  ExpectRow(BlockFloatFormat(Codec::kMxFp4), 128, {64, 4, 0});
  ExpectRow(BlockFloatFormat(Codec::kMxFp8), 128, {128, 4, 0});
  ExpectRow(BlockFloatFormat(Codec::kNvFp4), 80, {40, 5, 0});
}

// reference formats: 60,928 bytes a token at 8-bit g64 for 28 layers x 8 kv heads x (K + V) of 128.
TEST(LayoutTest, TokenOfQwen3IsSixtyThousandNineHundredTwentyEightBytes) {
  const uint32_t row = BytesOfStoredRow(MlxAffineFormat(8, 64, Dtype::kF16), 128).total();
  EXPECT_EQ(2 * 28 * 8 * row, 60928u);
}

struct UnitCase {
  TensorFormat format;
  uint32_t dim, page_tokens;
  uint64_t scales_offset, biases_offset, payload_bytes, unit_bytes;
};

TEST(LayoutTest, UnitsOfOneToSixtyFourTokensStandWhereTheHandFormulaPutsThem) {
  const TensorFormat k8 = MlxAffineFormat(8, 64, Dtype::kF16);   // 128 + 4 + 4 = 136 a token
  const TensorFormat v4 = MlxAffineFormat(4, 32, Dtype::kBf16);  // 64 + 8 + 8 = 80
  const TensorFormat b3 = MlxAffineFormat(3, 128, Dtype::kF32);  // 48 + 4 + 4 = 56
  const TensorFormat b5 = MlxAffineFormat(5, 32, Dtype::kF16);   // dim 96: 60 + 6 + 6 = 72
  const TensorFormat raw = RawFormat(Dtype::kF16);               // dim 80: 160
  const TensorFormat q4 = GgmlFormat(Codec::kQ4_0);              // 72
  const TensorFormat q8 = GgmlFormat(Codec::kQ8_0);              // 136
  const UnitCase cases[] = {
      {k8, 128, 1, 128, 132, 136, 256},
      {k8, 128, 31, 3968, 4092, 4216, 4224},
      {k8, 128, 32, 4096, 4224, 4352, 4352},
      {k8, 128, 63, 8064, 8316, 8568, 8576},
      {k8, 128, 64, 8192, 8448, 8704, 8704},

      {v4, 128, 1, 64, 72, 80, 128},
      {v4, 128, 31, 1984, 2232, 2480, 2560},
      {v4, 128, 32, 2048, 2304, 2560, 2560},
      {v4, 128, 63, 4032, 4536, 5040, 5120},
      {v4, 128, 64, 4096, 4608, 5120, 5120},

      {b3, 128, 1, 48, 52, 56, 128},
      {b3, 128, 31, 1488, 1612, 1736, 1792},
      {b3, 128, 32, 1536, 1664, 1792, 1792},
      {b3, 128, 63, 3024, 3276, 3528, 3584},
      {b3, 128, 64, 3072, 3328, 3584, 3584},

      {b5, 96, 1, 60, 66, 72, 128},
      {b5, 96, 31, 1860, 2046, 2232, 2304},
      {b5, 96, 32, 1920, 2112, 2304, 2304},
      {b5, 96, 63, 3780, 4158, 4536, 4608},
      {b5, 96, 64, 3840, 4224, 4608, 4608},

      {raw, 80, 1, 160, 160, 160, 256},
      {raw, 80, 31, 4960, 4960, 4960, 4992},
      {raw, 80, 32, 5120, 5120, 5120, 5120},
      {raw, 80, 63, 10080, 10080, 10080, 10112},
      {raw, 80, 64, 10240, 10240, 10240, 10240},

      {q4, 128, 1, 72, 72, 72, 128},
      {q4, 128, 31, 2232, 2232, 2232, 2304},
      {q4, 128, 32, 2304, 2304, 2304, 2304},
      {q4, 128, 63, 4536, 4536, 4536, 4608},
      {q4, 128, 64, 4608, 4608, 4608, 4608},

      {q8, 128, 1, 136, 136, 136, 256},
      {q8, 128, 31, 4216, 4216, 4216, 4224},
      {q8, 128, 64, 8704, 8704, 8704, 8704},
  };
  for (const UnitCase& each : cases) {
    SCOPED_TRACE(ToString(each.format) + " at " + std::to_string(each.page_tokens) + " tokens");
    const UnitLayout layout = LayoutOfUnit(each.format, each.dim, each.page_tokens);
    EXPECT_EQ(layout.codes_offset, 0u);
    EXPECT_EQ(layout.scales_offset, each.scales_offset);
    EXPECT_EQ(layout.biases_offset, each.biases_offset);
    EXPECT_EQ(layout.payload_bytes, each.payload_bytes);
    EXPECT_EQ(layout.unit_bytes, each.unit_bytes);
  }
}

TEST(LayoutTest, TiledUnitsHaveTheirSlotsRoundedUpToSixteen) {
  const TensorFormat k8 = Tiled(MlxAffineFormat(8, 64, Dtype::kF16));  // 128 + 4 + 4
  const TensorFormat v4 = Tiled(MlxAffineFormat(4, 32, Dtype::kF32));  // 48 + 12 + 12 at dim 96
  const TensorFormat q8 = Tiled(GgmlFormat(Codec::kQ8_0));             // 128 + 8
  const TensorFormat q41 = Tiled(GgmlFormat(Codec::kQ4_1));            // 64 + 8 + 8
  const UnitCase cases[] = {
      {k8, 128, 1, 2048, 2112, 2176, 2176},  {k8, 128, 31, 4096, 4224, 4352, 4352},
      {k8, 128, 33, 6144, 6336, 6528, 6528}, {k8, 128, 64, 8192, 8448, 8704, 8704},
      {v4, 96, 1, 768, 960, 1152, 1152},     {v4, 96, 17, 1536, 1920, 2304, 2304},
      {q8, 128, 1, 2048, 2176, 2176, 2176},  {q8, 128, 64, 8192, 8704, 8704, 8704},
      {q41, 128, 16, 1024, 1152, 1280, 1280}};
  for (const UnitCase& each : cases) {
    SCOPED_TRACE(ToString(each.format) + " at " + std::to_string(each.page_tokens) + " tokens");
    const UnitLayout layout = LayoutOfUnit(each.format, each.dim, each.page_tokens);
    EXPECT_EQ(layout.slots, (each.page_tokens + 15) / 16 * 16);
    EXPECT_EQ(layout.scales_offset, each.scales_offset);
    EXPECT_EQ(layout.biases_offset, each.biases_offset);
    EXPECT_EQ(layout.payload_bytes, each.payload_bytes);
    EXPECT_EQ(layout.unit_bytes, each.unit_bytes);
  }
}

// The unit is what GPUs read: 64-token blocks of every width need no padding at all.
TEST(LayoutTest, SixtyFourTokensOfEveryMlxWidthNeedNoPadding) {
  for (uint8_t bits : std::initializer_list<uint8_t>{2, 3, 4, 5, 6, 8}) {
    for (uint16_t group : std::initializer_list<uint16_t>{32, 64, 128}) {
      for (uint32_t dim : {128u, 256u, 512u}) {
        const TensorFormat format = MlxAffineFormat(bits, group, Dtype::kF16);
        const UnitLayout layout = LayoutOfUnit(format, dim, 64);
        EXPECT_EQ(layout.unit_bytes, layout.payload_bytes) << ToString(format);
        EXPECT_EQ(layout.unit_bytes % kUnitAlignment, 0u);
      }
    }
  }
}

TEST(LayoutTest, LargestDimAndTokenCountDoNotOverflow) {
  const UnitLayout layout = LayoutOfUnit(RawFormat(Dtype::kF32), kMaxDim, 0xffffffff);
  EXPECT_EQ(layout.payload_bytes, 262144ull * 0xffffffffull);
}

}  // namespace
}  // namespace prefixd::quant
