#include "client/worker/kv_format.h"

#include <gtest/gtest.h>

namespace prefixd::worker {
namespace {

std::string Chosen(const KvFlags& flags) {
  const absl::StatusOr<KvChoice> choice = ChooseKvFormat(flags);
  EXPECT_TRUE(choice.ok()) << choice.status();
  return Describe(choice->format);
}

std::string Refusal(const KvFlags& flags) {
  return std::string(ChooseKvFormat(flags).status().message());
}

TEST(KvFormatTest, FlagsChooseFormats) {
  EXPECT_EQ(Chosen({}), "raw f32");
  EXPECT_EQ(Chosen({.bits = "", .group_size = "", .dtype = "bf16"}), "raw bf16");
  EXPECT_EQ(Chosen({.bits = "8", .group_size = "", .dtype = ""}),
            "8-bit group 64 (f16 scales), tiled");
  EXPECT_EQ(Chosen({.bits = "8,4", .group_size = "", .dtype = ""}),
            "keys 8-bit group 64, values 4-bit group 64 (f16 scales), tiled");
  EXPECT_EQ(Chosen({.bits = "8,4", .group_size = "64,32", .dtype = "bf16"}),
            "keys 8-bit group 64, values 4-bit group 32 (bf16 scales), tiled");
  EXPECT_EQ(Chosen({.bits = "3", .group_size = "128", .dtype = "f32"}),
            "3-bit group 128 (f32 scales)");
}

TEST(KvFormatTest, KeysAndValuesAreNotSwapped) {
  const KvFormat format =
      ChooseKvFormat({.bits = "8,4", .group_size = "64,32", .dtype = ""})->format;
  EXPECT_EQ(format.key.bits, 8);
  EXPECT_EQ(format.key.group_size, 64);
  EXPECT_EQ(format.value.bits, 4);
  EXPECT_EQ(format.value.group_size, 32);
}

// S1-04
TEST(KvFormatTest, ShortPromptsStayRawAndLongOnesAreQuantizedFromTheirFirstToken) {
  const QuantizeRule rule{.min_tokens = 256};
  EXPECT_EQ(rule.RawTokens(255, 64), 256U);
  EXPECT_EQ(rule.RawTokens(256, 64), 0U);
  EXPECT_EQ((QuantizeRule{.min_tokens = 250}.RawTokens(249, 64)), 256U) << "whole blocks";
  EXPECT_EQ((QuantizeRule{.min_tokens = 0}.RawTokens(1, 64)), 0U) << "0: always quantized";
  EXPECT_EQ((QuantizeRule{.start = 300, .min_tokens = 256}.RawTokens(100, 64)), 300U);
}

TEST(KvFormatTest, RawTokensOfARotatedLadderAreRotatedToo) {
  const KvChoice choice =
      ChooseKvFormat({.bits = "8", .rotation = "hadamard", .quantized_start = 64}).value();
  ASSERT_EQ(choice.Ladder().size(), 2U);
  EXPECT_EQ(choice.Ladder()[0].key.rotation, Rotation::kHadamard);
  EXPECT_EQ(choice.Ladder()[0].value.rotation, Rotation::kHadamard);
}

TEST(KvFormatTest, EveryBitAndGroupOfTheListIsTaken) {
  for (const char* bits : {"2", "3", "4", "5", "6", "8"}) {
    for (const char* group : {"32", "64", "128"}) {
      EXPECT_TRUE(ChooseKvFormat({.bits = bits, .group_size = group, .dtype = ""}).ok());
    }
  }
}

TEST(KvFormatTest, AnythingElseIsRefusedWithTheChoices) {
  for (const char* bits : {"7", "1", "16", "eight", "8,", ",8", "8,7", "8,4,2", "8 ", "08", "+8"}) {
    EXPECT_EQ(Refusal({.bits = bits, .group_size = "", .dtype = ""}),
              std::string("--kv-bits: \"") + bits +
                  "\", choose 2, 3, 4, 5, 6 or 8, or two of them for keys and values as in 8,4");
  }
  EXPECT_EQ(
      Refusal({.bits = "8", .group_size = "48", .dtype = ""}),
      "--kv-group-size: \"48\", choose 32, 64 or 128, or two of them for keys and values as in "
      "64,32");
  EXPECT_EQ(Refusal({.bits = "", .group_size = "", .dtype = "f64"}),
            "--kv-dtype: \"f64\", choose f32, f16 or bf16");
  EXPECT_EQ(
      Refusal({.bits = "", .group_size = "64", .dtype = ""}),
      "--kv-group-size: \"64\" without --kv-bits; raw values have no groups, choose --kv-bits "
      "2, 3, 4, 5, 6 or 8, or two of them for keys and values as in 8,4");
}

TEST(KvFormatTest, KeysCoarserThanValuesAreTakenWithAWarning) {
  const absl::StatusOr<KvChoice> choice =
      ChooseKvFormat({.bits = "4,8", .group_size = "", .dtype = ""});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->warning.rfind("--kv-bits 4,8 stores keys coarser than values", 0), 0U);
  EXPECT_EQ(ChooseKvFormat({.bits = "8,4", .group_size = "", .dtype = ""})->warning, "");
  EXPECT_EQ(ChooseKvFormat({.bits = "4", .group_size = "", .dtype = ""})->warning, "");
}

TEST(KvFormatTest, RotationIsPartOfTheFormat) {
  EXPECT_EQ(Chosen({.bits = "4", .rotation = "hadamard"}),
            "4-bit group 64 (f16 scales), hadamard, tiled");
  EXPECT_EQ(Chosen({.rotation = "hadamard"}), "raw f32, hadamard");
  EXPECT_EQ(Chosen({.bits = "4", .rotation = "none"}), "4-bit group 64 (f16 scales), tiled");
  EXPECT_EQ(Refusal({.rotation = "random"}), "--kv-rotation: \"random\", choose none or hadamard");
  EXPECT_EQ(CheckKvFormat(Rotated(Raw(Dtype::kF32)), 40).message(),
            "--kv-rotation: hadamard wants a head_dim that 16 divides, this one is 40");
}

TEST(KvFormatTest, PagesAreTiledWhereTheFormatHasThatAndNotToldOtherwise) {
  EXPECT_EQ(Chosen({.bits = "8", .layout = "rows"}), "8-bit group 64 (f16 scales)");
  EXPECT_EQ(Chosen({.bits = "8,6", .layout = "tiled"}),
            "keys 8-bit group 64, values 6-bit group 64 (f16 scales), keys tiled");
  EXPECT_EQ(Refusal({.bits = "8", .layout = "columns"}),
            "--kv-layout: \"columns\", choose rows or tiled");
}

TEST(KvFormatTest, DecodingIsFastWhereTheFormatHasATiledLayoutAndPrefillPrecise) {
  const auto modes = [](const KvFlags& flags) {
    return Describe(ChooseAttention(ChooseKvFormat(flags)->format).modes);
  };
  EXPECT_EQ(modes({.bits = "8"}), "prefill precise, decode fast");
  EXPECT_EQ(modes({.bits = "8,4"}), "prefill precise, decode fast");
  EXPECT_EQ(modes({.bits = "8", .layout = "rows"}), "prefill precise, decode fast");
  EXPECT_EQ(modes({.bits = "8,6"}), "prefill precise, decode precise") << "6 bits have no tiles";
  EXPECT_EQ(modes({}), "prefill precise, decode precise");
}

TEST(KvFormatTest, GroupMustDivideHeadDim) {
  const KvFormat format = MlxAffine(8, 64, 4, 128, Dtype::kF16);
  EXPECT_TRUE(CheckKvFormat(format, 128).ok());
  EXPECT_TRUE(CheckKvFormat(Raw(Dtype::kF32), 40).ok());
  EXPECT_EQ(CheckKvFormat(format, 64).message(),
            "--kv-group-size: 128 does not divide head_dim 64");
}

}  // namespace
}  // namespace prefixd::worker
