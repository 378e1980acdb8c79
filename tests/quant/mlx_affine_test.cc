#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

// bits, group_size, dtype
using Parameters = std::tuple<int, int, Dtype>;

std::string NameOf(const Parameters& parameters) {
  const auto [bits, group, dtype] = parameters;
  return absl::StrCat(ToString(dtype), "_b", bits, "_g", group);
}

// FNV-1a with the manifest's starting value (the customary one lacks its last digit there).
std::string Fnv1a64(std::span<const std::byte> bytes) {
  uint64_t hash = 1469598103934665603;
  for (std::byte byte : bytes) hash = (hash ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

// The column `column` of the line of `file` in mlx/manifest.tsv.
std::string ManifestEntry(const std::string& file, const std::string& column) {
  const std::vector<std::byte> bytes = ReadGolden("mlx/manifest.tsv");
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  std::vector<std::string> names;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    if (names.empty()) names = fields;
    for (size_t i = 0; i < fields.size(); ++i) {
      if (fields[0] == file && names[i] == column) return fields[i];
    }
  }
  return "no such entry";
}

class MlxAffineGolden : public testing::TestWithParam<Parameters> {
 protected:
  const TensorFormat format_ =
      MlxAffineFormat(static_cast<uint8_t>(std::get<0>(GetParam())),
                      static_cast<uint16_t>(std::get<1>(GetParam())), std::get<2>(GetParam()));
  const std::vector<std::byte> golden_ =
      ReadGolden(absl::StrCat("mlx/", NameOf(GetParam()), ".bin"));
  const UnitLayout layout_ = LayoutOfUnit(format_, kGoldenDim, kGoldenRows);
};

TEST_P(MlxAffineGolden, CodesScalesAndBiasesEqualMlx) {
  const std::vector<float> input =
      ReadGoldenFloats(absl::StrCat("mlx/input_", ToString(format_.dtype), ".bin"), format_.dtype);
  ASSERT_EQ(input.size(), kGoldenRows * kGoldenDim);
  ASSERT_GE(golden_.size(), layout_.payload_bytes);
  ExpectSameBytes(QuantizeRows(format_, input, kGoldenDim),
                  std::span(golden_).first(layout_.payload_bytes));
}

// MLX's dequantized values stand in the files of group 64; the manifest has their hash for every
// group.
TEST_P(MlxAffineGolden, DequantizedValuesEqualMlx) {
  const std::vector<float> seen = DequantizeRows(format_, golden_, kGoldenDim, kGoldenRows);
  std::vector<std::byte> bytes(seen.size() * DtypeBytes(format_.dtype));
  NarrowFromFloat(format_.dtype, seen.data(), seen.size(), bytes.data());
  EXPECT_EQ(Fnv1a64(bytes), ManifestEntry(NameOf(GetParam()) + ".bin", "dequant_fnv"));

  const auto expected = std::span(golden_).subspan(layout_.payload_bytes);
  ASSERT_EQ(expected.size(), format_.group_size == 64 ? bytes.size() : 0);
  if (!expected.empty()) ExpectSameBytes(bytes, expected);
}

INSTANTIATE_TEST_SUITE_P(AllWidths, MlxAffineGolden,
                         testing::Combine(testing::Values(2, 3, 4, 5, 6, 8),
                                          testing::Values(32, 64, 128),
                                          testing::Values(Dtype::kF32, Dtype::kF16, Dtype::kBf16)),
                         [](const auto& param_info) { return NameOf(param_info.param); });

}  // namespace
}  // namespace prefixd::quant
