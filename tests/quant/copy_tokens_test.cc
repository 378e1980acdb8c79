#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "quant/unit.h"
#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

constexpr uint32_t kDim = 128;

// A unit of `page_tokens` slots: token rows [first, first + page_tokens) of one endless random
// tensor, padding zero.
std::vector<std::byte> UnitOf(UnitShape shape, uint32_t first, uint32_t page_tokens) {
  shape.page_tokens = page_tokens;
  std::vector<std::byte> unit(LayoutOf(shape).unit_bytes);
  for (uint32_t token = 0; token < page_tokens; ++token) {
    std::mt19937 random(first + token);
    std::normal_distribution<float> normal;
    std::vector<float> row(kDim);
    for (float& x : row) x = normal(random);
    QuantizeToken(shape, row, token, unit.data());
  }
  return unit;
}

UnitShape At(UnitShape shape, uint32_t page_tokens) {
  shape.page_tokens = page_tokens;
  return shape;
}

class CopyTokensTest : public testing::TestWithParam<std::tuple<TensorFormat, Side>> {
 protected:
  const UnitShape shape_{.format = std::get<0>(GetParam()),
                         .side = std::get<1>(GetParam()),
                         .dim = kDim,
                         .page_tokens = 0};
  const UnitShape in_rows_{
      .format = InRows(shape_.format), .side = shape_.side, .dim = kDim, .page_tokens = 0};
};

// A cut at any token is exact: groups never cross a token.
TEST_P(CopyTokensTest, CutOfAUnitIsTheUnitOfThoseTokens) {
  const std::vector<std::byte> whole = UnitOf(shape_, 0, 64);
  for (uint32_t tokens : {1u, 31u, 32u, 63u, 64u}) {
    std::vector<std::byte> cut(LayoutOf(At(shape_, tokens)).unit_bytes);
    CopyTokens({At(shape_, 64), whole.data(), 0}, {At(shape_, tokens), cut.data(), 0}, tokens);
    ExpectSameBytes(cut, UnitOf(shape_, 0, tokens));
  }
}

TEST_P(CopyTokensTest, TokensFromTwoUnitsJoinAtAnyPlace) {
  const std::vector<std::byte> first = UnitOf(shape_, 0, 40);
  const std::vector<std::byte> second = UnitOf(shape_, 30, 50);
  const UnitShape joined_shape = At(shape_, 63);
  std::vector<std::byte> joined(LayoutOf(joined_shape).unit_bytes);
  CopyTokens({At(shape_, 50), second.data(), 7}, {joined_shape, joined.data(), 37}, 26);  // 37..62
  CopyTokens({At(shape_, 40), first.data(), 0}, {joined_shape, joined.data(), 0}, 37);    // 0..36
  ExpectSameBytes(joined, UnitOf(shape_, 0, 63));
}

TEST_P(CopyTokensTest, BytesOfOtherTokensAreUntouched) {
  const std::vector<std::byte> from = UnitOf(shape_, 0, 64);
  const std::vector<std::byte> before = UnitOf(shape_, 100, 33);
  const UnitShape to_shape = At(shape_, 33);
  std::vector<std::byte> to = before;
  CopyTokens({At(shape_, 64), from.data(), 0}, {to_shape, to.data(), 0}, 0);
  ExpectSameBytes(to, before);

  for (const uint32_t count : {1u, 3u, 9u, 24u}) {
    CopyTokens({At(shape_, 64), from.data(), 9}, {to_shape, to.data(), 5}, count);
    for (uint32_t token = 0; token < 33; ++token) {
      const bool copied = token >= 5 && token < 5 + count;
      std::vector<float> seen(kDim), wanted(kDim);
      DequantizeToken(to_shape, to.data(), token, seen);
      DequantizeToken(copied ? At(shape_, 64) : to_shape, copied ? from.data() : before.data(),
                      copied ? token + 4 : token, wanted);
      ExpectSameFloats(seen, wanted);
    }
    CopyTokens({to_shape, before.data(), 5}, {to_shape, to.data(), 5}, count);
    ExpectSameBytes(to, before);
  }
}

// The other layout holds the same codes: there and back at any place is the unit itself.
TEST_P(CopyTokensTest, RowsAndThisLayoutConvertExactly) {
  const std::vector<std::byte> unit = UnitOf(shape_, 0, 40);
  std::vector<std::byte> rows(LayoutOf(At(in_rows_, 29)).unit_bytes);
  CopyTokens({At(shape_, 40), unit.data(), 11}, {At(in_rows_, 29), rows.data(), 0}, 29);
  ExpectSameBytes(rows, UnitOf(in_rows_, 11, 29));
  std::vector<std::byte> back = UnitOf(shape_, 500, 40);
  CopyTokens({At(shape_, 40), unit.data(), 0}, {At(shape_, 40), back.data(), 0}, 11);
  CopyTokens({At(in_rows_, 29), rows.data(), 0}, {At(shape_, 40), back.data(), 11}, 29);
  ExpectSameBytes(back, unit);
}

TEST_P(CopyTokensTest, ARowComesBackAsItWasStored) {
  const UnitShape one_row = At(in_rows_, 1), shape = At(shape_, 20);
  std::vector<std::byte> unit(LayoutOf(shape).unit_bytes);
  for (uint32_t token = 0; token < 20; ++token) {
    const std::vector<std::byte> row = UnitOf(one_row, token, 1);
    StoreRow(shape, RowOf(row.data(), LayoutOf(one_row), one_row.format, kDim, 0), token,
             unit.data());
  }
  ExpectSameBytes(unit, UnitOf(shape_, 0, 20));
  std::vector<std::byte> row(LayoutOf(one_row).unit_bytes);
  LoadRow(shape, unit.data(), 13, RowOf(row.data(), LayoutOf(one_row), one_row.format, kDim, 0));
  ExpectSameBytes(row, UnitOf(one_row, 13, 1));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CopyTokensTest,
    testing::Combine(
        testing::Values(RawFormat(Dtype::kF32), RawFormat(Dtype::kBf16),
                        MlxAffineFormat(8, 64, Dtype::kF16), MlxAffineFormat(5, 32, Dtype::kBf16),
                        MlxAffineFormat(3, 128, Dtype::kF32), GgmlFormat(Codec::kQ4_0),
                        GgmlFormat(Codec::kQ5_1), GgmlFormat(Codec::kQ8_0),
                        BlockFloatFormat(Codec::kMxFp8), BlockFloatFormat(Codec::kNvFp4),
                        Transposed(RawFormat(Dtype::kF16)), Transposed(RawFormat(Dtype::kF32)),
                        Tiled(MlxAffineFormat(8, 64, Dtype::kF16)),
                        Tiled(MlxAffineFormat(8, 32, Dtype::kF32)),
                        Tiled(MlxAffineFormat(4, 128, Dtype::kBf16)),
                        Tiled(MlxAffineFormat(4, 32, Dtype::kF16)), Tiled(GgmlFormat(Codec::kQ4_0)),
                        Tiled(GgmlFormat(Codec::kQ4_1)), Tiled(GgmlFormat(Codec::kQ8_0))),
        testing::Values(Side::kKey, Side::kValue)),
    [](const auto& param_info) {
      std::string name = ToString(std::get<0>(param_info.param));
      for (char& c : name) c = c == '/' ? '_' : c;
      return name + (std::get<1>(param_info.param) == Side::kKey ? "_key" : "_value");
    });

}  // namespace
}  // namespace prefixd::quant
