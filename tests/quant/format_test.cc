#include "quant/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

namespace prefixd::quant {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<TensorFormat> EveryFormat() {
  std::vector<TensorFormat> formats;
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    formats.push_back(RawFormat(dtype));
    for (uint8_t bits : std::initializer_list<uint8_t>{2, 3, 4, 5, 6, 8}) {
      for (uint16_t group : std::initializer_list<uint16_t>{32, 64, 128})
        formats.push_back(MlxAffineFormat(bits, group, dtype));
    }
  }
  for (Codec codec : {Codec::kQ4_0, Codec::kQ4_1, Codec::kQ5_0, Codec::kQ5_1, Codec::kQ8_0}) {
    formats.push_back(GgmlFormat(codec));
  }
  for (Codec codec : {Codec::kMxFp4, Codec::kMxFp8, Codec::kNvFp4}) {
    formats.push_back(BlockFloatFormat(codec));
  }
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    formats.push_back(Transposed(RawFormat(dtype)));
  }
  for (size_t i = 0, rows = formats.size(); i < rows; ++i) {
    if (HasTiled(formats[i])) formats.push_back(Tiled(formats[i]));
  }
  return formats;
}

std::string Refusal(const TensorFormat& format, uint32_t dim) {
  const absl::Status status = Validate(format, dim);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(FormatTest, EveryFormatFitsHeadDim128AndReadsBackFromItsName) {
  ASSERT_EQ(EveryFormat().size(), 3u + 54u + 5u + 18u + 3u + 3u + 3u);
  for (const TensorFormat& format : EveryFormat()) {
    EXPECT_TRUE(Validate(format, 128).ok()) << Validate(format, 128);
    const absl::StatusOr<TensorFormat> parsed = ParseTensorFormat(ToString(format));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(*parsed == format) << ToString(format);
  }
}

TEST(FormatTest, NamesAreThoseOfTheHeader) {
  EXPECT_EQ(ToString(RawFormat(Dtype::kF16)), "raw/f16");
  EXPECT_EQ(ToString(MlxAffineFormat(8, 64, Dtype::kBf16)), "mlx_affine/8/64/bf16");
  EXPECT_EQ(ToString(GgmlFormat(Codec::kQ8_0)), "q8_0");
  const TensorFormat k8 = MlxAffineFormat(8, 64, Dtype::kF16);
  const TensorFormat v4 = MlxAffineFormat(4, 64, Dtype::kF16);
  EXPECT_EQ(ToString(Tiled(k8)), "mlx_affine/8/64/f16/tiled");
  EXPECT_EQ(ToString(Tiled(GgmlFormat(Codec::kQ8_0))), "q8_0/tiled");
  EXPECT_EQ(ToString(KvFormat{Tiled(k8), v4}), "mlx_affine/8/64/f16/tiled+mlx_affine/4/64/f16");
  EXPECT_EQ(ToString(KvFormat{k8, k8}), "mlx_affine/8/64/f16");
  EXPECT_EQ(ToString(KvFormat{k8, v4}), "mlx_affine/8/64/f16+mlx_affine/4/64/f16");
}

TEST(FormatTest, EveryFormatMayBeRotatedAndItsNameSaysSo) {
  for (const TensorFormat& format : EveryFormat()) {
    const TensorFormat rotated = Rotated(format);
    EXPECT_TRUE(Validate(rotated, 128).ok()) << Validate(rotated, 128);
    EXPECT_EQ(ToString(rotated), ToString(format) + "/hadamard");
    const absl::StatusOr<TensorFormat> parsed = ParseTensorFormat(ToString(rotated));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE(*parsed == rotated) << ToString(rotated);
    EXPECT_FALSE(rotated == format) << "another format, hence another space";
  }
  EXPECT_FALSE(ParseTensorFormat("q8_0/hadamard/hadamard").ok());
  EXPECT_FALSE(ParseTensorFormat("/hadamard").ok());
}

TEST(FormatTest, RotationMixesTheLargestPowerOfTwoThatDividesARow) {
  const std::vector<std::pair<uint32_t, uint32_t>> blocks = {{64, 64}, {96, 32},  {128, 128},
                                                             {80, 16}, {192, 64}, {576, 64}};
  for (const auto& [dim, block] : blocks) EXPECT_EQ(HadamardBlock(dim), block) << dim;
  EXPECT_TRUE(Validate(Rotated(RawFormat(Dtype::kF16)), 80).ok());
  EXPECT_EQ(Refusal(Rotated(RawFormat(Dtype::kF16)), 72),
            "format: raw/f16/hadamard has head_dim 72, accepted with hadamard: multiples of 16");
}

TEST(FormatTest, HeadDims80And112CanOnlyBeRawOrNvFp4) {
  for (uint32_t dim : {80u, 112u}) {
    for (const TensorFormat& format : EveryFormat()) {
      if (format.codec == Codec::kRaw || format.codec == Codec::kNvFp4) {
        EXPECT_TRUE(Validate(format, dim).ok());
      } else {
        EXPECT_THAT(Refusal(format, dim), HasSubstr("can only be raw or nvfp4"))
            << ToString(format);
      }
    }
  }
}

TEST(FormatTest, DimThatAnotherGroupSizeDividesIsRefusedNamingThatGroupSize) {
  EXPECT_EQ(Refusal(MlxAffineFormat(8, 64, Dtype::kF16), 96),
            "format: group_size 64 of mlx_affine/8/64/f16 does not divide head_dim 96, "
            "accepted here: 32");
  EXPECT_THAT(Refusal(MlxAffineFormat(8, 128, Dtype::kF16), 192), HasSubstr("here: 32, 64"));
  EXPECT_TRUE(Validate(MlxAffineFormat(8, 32, Dtype::kF16), 96).ok());
}

TEST(FormatTest, UnknownBitsAndGroupSizesAreRefusedWithTheAcceptedOnes) {
  for (uint8_t bits : std::initializer_list<uint8_t>{0, 1, 7, 9, 16, 255}) {
    EXPECT_THAT(Refusal(MlxAffineFormat(bits, 64, Dtype::kF16), 128),
                HasSubstr("accepted: 2, 3, 4, 5, 6, 8"))
        << int{bits};
  }
  EXPECT_THAT(Refusal(MlxAffineFormat(7, 64, Dtype::kF16), 128), HasSubstr("bits of mlx_affine 7"));
  for (uint16_t group : std::initializer_list<uint16_t>{0, 16, 48, 96, 256}) {
    EXPECT_THAT(Refusal(MlxAffineFormat(8, group, Dtype::kF16), 768),
                HasSubstr("accepted: 32, 64, 128"))
        << group;
  }
  EXPECT_THAT(Refusal(MlxAffineFormat(8, 48, Dtype::kF16), 96),
              HasSubstr("group_size of mlx_affine 48"));
}

TEST(FormatTest, DimsOutsideOneToTheLimitAreRefused) {
  EXPECT_THAT(Refusal(RawFormat(Dtype::kF32), 0), HasSubstr("head_dim 0, accepted: 1 to 65536"));
  EXPECT_THAT(Refusal(RawFormat(Dtype::kF32), kMaxDim + 1), HasSubstr("head_dim 65537"));
  EXPECT_TRUE(Validate(RawFormat(Dtype::kF32), 1).ok());
  EXPECT_TRUE(Validate(MlxAffineFormat(8, 128, Dtype::kF32), kMaxDim).ok());
}

// What stands on the wire and on disk may hold any byte in these fields.
TEST(FormatTest, UnknownEnumsAreRefusedWithTheNumberSeen) {
  TensorFormat format = RawFormat(Dtype::kF32);
  format.codec = static_cast<Codec>(0);
  EXPECT_THAT(Refusal(format, 128), AllOf(HasSubstr("codec 0"), HasSubstr("mlx_affine")));
  format.codec = static_cast<Codec>(11);
  EXPECT_THAT(Refusal(format, 128), HasSubstr("codec 11"));
  format = RawFormat(Dtype::kF32);
  format.dtype = static_cast<Dtype>(4);
  EXPECT_THAT(Refusal(format, 128), AllOf(HasSubstr("dtype 4"), HasSubstr("f32, f16, bf16")));
  format = RawFormat(Dtype::kF32);
  format.rotation = static_cast<Rotation>(3);
  EXPECT_THAT(Refusal(format, 128), HasSubstr("rotation 3, accepted: 1 (none), 2 (hadamard)"));
  format = RawFormat(Dtype::kF32);
  format.layout = static_cast<Layout>(4);
  EXPECT_THAT(Refusal(format, 128),
              HasSubstr("layout 4, accepted: 1 (rows), 2 (tiled), 3 (transposed)"));
}

TEST(FormatTest, TiledIsForCodesOfEightAndFourBits) {
  const auto tiled = [](TensorFormat format) {
    format.layout = Layout::kTiled;
    return format;
  };
  EXPECT_EQ(Refusal(tiled(MlxAffineFormat(3, 64, Dtype::kF16)), 128),
            "format: layout tiled has no place for 3-bit codes, accepted: rows");
  EXPECT_THAT(Refusal(tiled(GgmlFormat(Codec::kQ5_1)), 128), HasSubstr("for 5-bit codes"));
  EXPECT_THAT(Refusal(tiled(RawFormat(Dtype::kF16)), 128), HasSubstr("for raw elements"));
  EXPECT_EQ(Refusal(tiled(MlxAffineFormat(8, 64, Dtype::kF16)), 96),
            "format: group_size 64 of mlx_affine/8/64/f16/tiled does not divide head_dim 96, "
            "accepted here: 32");
  for (const TensorFormat& format : EveryFormat()) {
    const bool has = HasTiled(format);
    EXPECT_EQ(Validate(tiled(format), 128).ok(), has) << ToString(format);
    EXPECT_TRUE(Tiled(format) == (has ? tiled(format) : format));
    EXPECT_TRUE(InRows(Tiled(format)) == InRows(format));
  }
}

// S4-17: transposed V is another format, hence another space, and never taken for rows.
TEST(FormatTest, TransposedIsForRawElementsAndAnotherFormat) {
  const TensorFormat raw = RawFormat(Dtype::kF16);
  EXPECT_FALSE(Transposed(raw) == raw);
  EXPECT_EQ(ToString(Transposed(raw)), "raw/f16/transposed");
  EXPECT_EQ(ToString(KvFormat{raw, Transposed(raw)}), "raw/f16+raw/f16/transposed");
  EXPECT_TRUE(Validate(Transposed(raw), 80).ok());
  EXPECT_EQ(Refusal(Transposed(GgmlFormat(Codec::kQ8_0)), 128),
            "format: layout transposed has no place for q8_0, accepted: rows");
  EXPECT_FALSE(ParseTensorFormat("nvfp4/transposed").ok());
  EXPECT_FALSE(ParseTensorFormat("raw/f16/transposed/tiled").ok());
}

TEST(FormatTest, BlockFloatsHaveOneSpellingEach) {
  TensorFormat format = BlockFloatFormat(Codec::kMxFp4);
  format.group_size = 16;
  EXPECT_THAT(Refusal(format, 128), HasSubstr("group_size of mxfp4 16, accepted: 32"));
  format = BlockFloatFormat(Codec::kNvFp4);
  format.dtype = Dtype::kF16;
  EXPECT_THAT(Refusal(format, 128), HasSubstr("dtype of nvfp4 2, accepted: 3"));
  format = BlockFloatFormat(Codec::kMxFp8);
  format.layout = Layout::kTiled;
  EXPECT_THAT(Refusal(format, 128), HasSubstr("no place for codes that are floats"));
}

TEST(FormatTest, OneFormatHasOneSpelling) {
  TensorFormat format = RawFormat(Dtype::kF16);
  format.bits = 32;
  EXPECT_THAT(Refusal(format, 128), HasSubstr("bits of raw 32, accepted: 16"));
  format = RawFormat(Dtype::kF16);
  format.group_size = 64;
  EXPECT_THAT(Refusal(format, 128), HasSubstr("group_size of raw 64, accepted: 0"));
  format = GgmlFormat(Codec::kQ5_1);
  format.dtype = Dtype::kF32;
  EXPECT_THAT(Refusal(format, 128), HasSubstr("dtype of q5_1 1, accepted: 2"));
  format = GgmlFormat(Codec::kQ5_1);
  format.bits = 4;
  EXPECT_THAT(Refusal(format, 128), HasSubstr("bits of q5_1 4, accepted: 5"));
}

TEST(FormatTest, TextThatIsNotAFormatIsRefusedWithTheChoices) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "accepted: raw/DTYPE, mlx_affine/BITS/GROUP/DTYPE, q4_0"},
      {"q6_0", "\"q6_0\", accepted: raw/DTYPE"},
      {"raw", "accepted: raw/DTYPE"},
      {"raw/f64", "dtype \"f64\", accepted: f32, f16, bf16"},
      {"raw/f16/", "accepted: raw/DTYPE"},
      {"mlx_affine/8/64", "accepted: raw/DTYPE"},
      {"mlx_affine/7/64/f16", "bits of mlx_affine 7, accepted: 2, 3, 4, 5, 6, 8"},
      {"mlx_affine/264/64/f16", "bits of mlx_affine 264, accepted: 2, 3, 4, 5, 6, 8"},
      {"mlx_affine/08/64/f16", "bits of mlx_affine \"08\", accepted: 2, 3, 4, 5, 6, 8"},
      {"mlx_affine/-8/64/f16", "bits of mlx_affine \"-8\""},
      {"mlx_affine/8/48/f16", "group_size of mlx_affine 48, accepted: 32, 64, 128"},
      {"mlx_affine/8/65600/f16", "group_size of mlx_affine \"65600\", accepted: 32, 64, 128"},
      {"mlx_affine/8/ 64/f16", "group_size of mlx_affine \" 64\""},
      {"mlx_affine/8/64/F16", "dtype \"F16\", accepted: f32, f16, bf16"},
      {"MLX_affine/8/64/f16", "accepted: raw/DTYPE"},
      {"/tiled", "\"\", accepted: raw/DTYPE"},
      {"q8_0/tiled/tiled", "\"q8_0/tiled\", accepted: raw/DTYPE"},
      {"q5_0/tiled", "layout tiled has no place for 5-bit codes"},
      {"mlx_affine/6/64/f16/tiled", "layout tiled has no place for 6-bit codes"},
      {"raw/f16/tiled", "layout tiled has no place for raw elements"},
  };
  for (const auto& [text, expected] : cases) {
    const absl::StatusOr<TensorFormat> parsed = ParseTensorFormat(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(expected)) << text;
  }
}

}  // namespace
}  // namespace prefixd::quant
