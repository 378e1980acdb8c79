#include <gtest/gtest.h>

#include <random>

#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

constexpr uint32_t kDim = 128;

// A unit of `page_tokens` slots: token rows [first, first + page_tokens) of one endless random
// tensor, padding zero.
std::vector<std::byte> UnitOf(const TensorFormat& format, uint32_t first, uint32_t page_tokens) {
  const UnitLayout layout = LayoutOfUnit(format, kDim, page_tokens);
  std::vector<std::byte> unit(layout.unit_bytes);
  for (uint32_t token = 0; token < page_tokens; ++token) {
    std::mt19937 random(first + token);
    std::normal_distribution<float> normal;
    std::vector<float> row(kDim);
    for (float& x : row) x = normal(random);
    QuantizeRow(format, row, RowOf(unit.data(), layout, format, kDim, token));
  }
  return unit;
}

class CopyTokensTest : public testing::TestWithParam<TensorFormat> {
 protected:
  const TensorFormat format_ = GetParam();
};

// A cut at any token is exact: groups never cross a token.
TEST_P(CopyTokensTest, CutOfAUnitIsTheUnitOfThoseTokens) {
  const std::vector<std::byte> whole = UnitOf(format_, 0, 64);
  for (uint32_t tokens : {1u, 31u, 32u, 63u, 64u}) {
    std::vector<std::byte> cut(LayoutOfUnit(format_, kDim, tokens).unit_bytes);
    CopyTokens(format_, kDim, whole.data(), {64, 0}, cut.data(), {tokens, 0}, tokens);
    ExpectSameBytes(cut, UnitOf(format_, 0, tokens));
  }
}

TEST_P(CopyTokensTest, TokensFromTwoUnitsJoinAtAnyPlace) {
  const std::vector<std::byte> first = UnitOf(format_, 0, 40);
  const std::vector<std::byte> second = UnitOf(format_, 30, 50);
  std::vector<std::byte> joined(LayoutOfUnit(format_, kDim, 63).unit_bytes);
  CopyTokens(format_, kDim, second.data(), {50, 7}, joined.data(), {63, 37}, 26);  // tokens 37..62
  CopyTokens(format_, kDim, first.data(), {40, 0}, joined.data(), {63, 0}, 37);    // tokens 0..36
  ExpectSameBytes(joined, UnitOf(format_, 0, 63));
}

TEST_P(CopyTokensTest, BytesOutsideTheTokensAreUntouched) {
  const std::vector<std::byte> from = UnitOf(format_, 0, 64);
  std::vector<std::byte> to(LayoutOfUnit(format_, kDim, 33).unit_bytes, std::byte{0xa5});
  std::vector<std::byte> expected = to;
  CopyTokens(format_, kDim, from.data(), {64, 0}, to.data(), {33, 0}, 0);
  ExpectSameBytes(to, expected);

  CopyTokens(format_, kDim, from.data(), {64, 9}, to.data(), {33, 5}, 3);
  const RowBytes row = BytesOfRow(format_, kDim);
  for (uint32_t i = 0; i < 3; ++i) {
    const ConstRowPlace source =
        RowOf(from.data(), LayoutOfUnit(format_, kDim, 64), format_, kDim, 9 + i);
    const RowPlace target =
        RowOf(expected.data(), LayoutOfUnit(format_, kDim, 33), format_, kDim, 5 + i);
    std::memcpy(target.codes, source.codes, row.codes);
    ASSERT_EQ(source.scales == nullptr, row.scales == 0);
    ASSERT_EQ(source.biases == nullptr, row.biases == 0);
    if (row.scales != 0) std::memcpy(target.scales, source.scales, row.scales);
    if (row.biases != 0) std::memcpy(target.biases, source.biases, row.biases);
  }
  ExpectSameBytes(to, expected);
}

INSTANTIATE_TEST_SUITE_P(Formats, CopyTokensTest,
                         testing::Values(RawFormat(Dtype::kF32), RawFormat(Dtype::kBf16),
                                         MlxAffineFormat(8, 64, Dtype::kF16),
                                         MlxAffineFormat(5, 32, Dtype::kBf16),
                                         MlxAffineFormat(3, 128, Dtype::kF32),
                                         GgmlFormat(Codec::kQ4_0), GgmlFormat(Codec::kQ5_1),
                                         GgmlFormat(Codec::kQ8_0)),
                         [](const auto& param_info) {
                           std::string name = ToString(param_info.param);
                           for (char& c : name) c = c == '/' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace prefixd::quant
