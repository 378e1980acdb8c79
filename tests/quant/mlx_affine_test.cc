#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/str_cat.h"

#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

// bits, group_size, dtype
using Parameters = std::tuple<int, int, Dtype>;

std::string NameOf(const Parameters& parameters) {
  const auto [bits, group, dtype] = parameters;
  return absl::StrCat(ToString(dtype), "_b", bits, "_g", group);
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

// MLX's dequantized values stand in the files of group 64.
TEST_P(MlxAffineGolden, DequantizedValuesEqualMlx) {
  const size_t dequant_bytes = golden_.size() - layout_.payload_bytes;
  if (format_.group_size != 64) {
    ASSERT_EQ(dequant_bytes, 0u);
    return;
  }
  ASSERT_EQ(dequant_bytes, size_t{kGoldenRows} * kGoldenDim * DtypeBytes(format_.dtype));
  std::vector<float> expected(size_t{kGoldenRows} * kGoldenDim);
  WidenToFloat(format_.dtype, golden_.data() + layout_.payload_bytes, expected.size(),
               expected.data());
  ExpectSameFloats(DequantizeRows(format_, golden_, kGoldenDim, kGoldenRows), expected);
}

INSTANTIATE_TEST_SUITE_P(AllWidths, MlxAffineGolden,
                         testing::Combine(testing::Values(2, 3, 4, 5, 6, 8),
                                          testing::Values(32, 64, 128),
                                          testing::Values(Dtype::kF32, Dtype::kF16, Dtype::kBf16)),
                         [](const auto& param_info) { return NameOf(param_info.param); });

}  // namespace
}  // namespace prefixd::quant
