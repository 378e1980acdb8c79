// What the codecs do to values: worked vectors, errors on normal data, raw rows, NaN and infinity.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "base/bytes.h"
#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

using Generator = std::function<float(int)>;

struct WorkedVector {
  const char* what;
  Generator element;
  uint8_t bits;
  uint16_t scale, bias;  // f16 bits
  std::string codes;     // hex, in memory order
};

std::string Repeated(const char* text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::vector<WorkedVector> WorkedVectors() {
  const Generator ramp = [](int i) { return static_cast<float>(i - 16) / 8; };
  const Generator tie = [](int i) { return i == 0 ? 1.0f : i == 1 ? -1.0f : 0.0f; };
  const auto constant = [](float c) { return [c](int) { return c; }; };
  const auto steps = [](float c) {
    return [c](int i) { return c + std::copysign(static_cast<float>(i % 4) / 4, c); };
  };
  return {
      {"ramp", ramp, 2, 0x3c00, 0xc000, "005455aaaafeffff"},
      {"ramp", ramp, 3, 0x3800, 0xc000, "00924892b69124dbdab6ffff"},
      {"ramp", ramp, 4, 0x3400, 0xc000, "002122434465668788a9aacbccedeeff"},
      {"ramp", ramp, 5, 0x3000, 0xc000, "2088418a3928a9c59a7b30ca49abbd38ebcdbbff"},
      {"ramp", ramp, 6, 0x2bc2, 0xc000, "80401888c238d0545dd9d67de1589ee9dabe326de33aefff"},
      {"ramp", ramp, 8, 0x23c2, 0xc000,
       "000810192129323a424a525b636b747c848c949da5adb6bec6ced6dfe7eff8ff"},
      {"zeros", constant(0), 4, 0x8002, 0x0000, Repeated("00", 16)},
      {"constant", constant(1.5f), 4, 0x8002, 0x3e00, Repeated("00", 16)},
      {"tie", tie, 4, 0xb092, 0x3c00, "e0" + Repeated("77", 15)},
      {"all negative", steps(-5), 4, 0x2a66, 0xc5c0, Repeated("af05", 8)},
      {"all positive", steps(5), 4, 0xaa66, 0x45c0, Repeated("af05", 8)},
  };
}

// Input is f32, scales and biases are stored as f16: the codes do not depend on how they are
// stored.
TEST(MlxAffineTest, WorkedVectorsOfTheReferenceComeOut) {
  for (const WorkedVector& each : WorkedVectors()) {
    SCOPED_TRACE(std::string(each.what) + " at " + std::to_string(each.bits) + " bits");
    std::vector<float> row(32);
    for (int i = 0; i < 32; ++i) row[static_cast<size_t>(i)] = each.element(i);
    const TensorFormat format = MlxAffineFormat(each.bits, 32, Dtype::kF16);
    const std::vector<std::byte> unit = QuantizeRows(format, row, 32);
    ASSERT_EQ(unit.size(), each.bits * 4u + 4u);
    base::ByteWriter expected;
    expected.Fixed(each.scale);
    expected.Fixed(each.bias);
    const auto bytes = std::span(std::as_const(unit));
    EXPECT_EQ(base::ToHex(bytes.first(each.bits * 4u)), each.codes);
    EXPECT_EQ(base::ToHex(bytes.last(4)), base::ToHex(base::AsBytes(expected.bytes())));
  }
}

// Mean absolute error on `rows` rows of 128 seeded standard normals.
double MeanErrorOnNormal(const TensorFormat& format, int rows) {
  constexpr uint32_t kDim = 128;
  const RowBytes bytes = BytesOfStoredRow(format, kDim);
  std::vector<std::byte> unit(bytes.total());
  std::vector<float> row(kDim), back(kDim);
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  double sum = 0;
  for (int i = 0; i < rows; ++i) {
    for (float& x : row) x = normal(random);
    const UnitLayout layout = LayoutOfUnit(format, kDim, 1);
    QuantizeRow(format, row, RowOf(unit.data(), layout, format, kDim, 0));
    DequantizeRow(format, RowOf(std::as_const(unit).data(), layout, format, kDim, 0), back);
    for (uint32_t c = 0; c < kDim; ++c) sum += std::fabs(back[c] - row[c]);
  }
  return sum / (static_cast<double>(rows) * kDim);
}

// S1-27 error: the seed's numbers, here over 16384 x 128 = 2.1 million samples.
TEST(MlxAffineTest, MeanErrorOnStandardNormalDataIsTheSeeds) {
  EXPECT_NEAR(MeanErrorOnNormal(MlxAffineFormat(8, 64, Dtype::kF32), 16384), 0.00456, 0.00002);
  EXPECT_NEAR(MeanErrorOnNormal(MlxAffineFormat(4, 64, Dtype::kF32), 16384), 0.0771, 0.0002);
}

TEST(GgmlTest, MeanErrorOnStandardNormalDataIsTheReferences) {
  EXPECT_NEAR(MeanErrorOnNormal(GgmlFormat(Codec::kQ4_0), 8192), 0.0719, 0.0003);
  EXPECT_NEAR(MeanErrorOnNormal(GgmlFormat(Codec::kQ4_1), 8192), 0.0646, 0.0003);
  EXPECT_NEAR(MeanErrorOnNormal(GgmlFormat(Codec::kQ5_0), 8192), 0.0357, 0.0002);
  EXPECT_NEAR(MeanErrorOnNormal(GgmlFormat(Codec::kQ5_1), 8192), 0.0313, 0.0002);
  EXPECT_NEAR(MeanErrorOnNormal(GgmlFormat(Codec::kQ8_0), 8192), 0.0045, 0.0001);
}

TEST(MlxAffineTest, ElementOfLargestMagnitudeComesBackExactly) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    const std::vector<float> input =
        ReadGoldenFloats(std::string("mlx/input_") + ToString(dtype) + ".bin", dtype);
    const TensorFormat format = MlxAffineFormat(4, 64, dtype);
    // Rows 24 to 63 are normal data.
    const auto normal = std::span(input).subspan(24 * kGoldenDim);
    const std::vector<float> back = DequantizeRows(format, QuantizeRows(format, normal, kGoldenDim),
                                                   kGoldenDim, kGoldenRows - 24);
    for (size_t begin = 0; begin < normal.size(); begin += 64) {
      const auto group = normal.subspan(begin, 64);
      const auto widest = std::max_element(
          group.begin(), group.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
      ASSERT_EQ(back[begin + static_cast<size_t>(widest - group.begin())], *widest) << begin;
    }
  }
}

TEST(RawTest, ElementsComeBackAsTheirDtypeHoldsThem) {
  const std::vector<float> row = {1.0f, -0.1f, 65519.0f, 1e-8f, -0.0f};
  const uint32_t dim = static_cast<uint32_t>(row.size());
  const std::vector<std::byte> f32 = QuantizeRows(RawFormat(Dtype::kF32), row, dim);
  ExpectSameFloats(DequantizeRows(RawFormat(Dtype::kF32), f32, dim, 1), row);
  const std::vector<std::byte> f16 = QuantizeRows(RawFormat(Dtype::kF16), row, dim);
  ExpectSameFloats(DequantizeRows(RawFormat(Dtype::kF16), f16, dim, 1),
                   std::vector<float>{1.0f, -0.0999755859375f, 65504.0f, 0.0f, -0.0f});
  const std::vector<std::byte> bf16 = QuantizeRows(RawFormat(Dtype::kBf16), row, dim);
  ExpectSameFloats(DequantizeRows(RawFormat(Dtype::kBf16), bf16, dim, 1),
                   std::vector<float>{1.0f, -0.10009765625f, 65536.0f, 0x1.58p-27f, -0.0f});
}

// A5 bad input, NaN payloads: whatever stands in one group, its neighbours keep every value. UBSan
// sees here that no float which does not fit is converted to an integer.
TEST(NotANumberTest, NanInfinityOrExtremesInOneGroupChangeNothingOutsideIt) {
  std::mt19937_64 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> row(256);
  for (float& x : row) x = normal(random);
  using Limits = std::numeric_limits<float>;
  for (const TensorFormat& format :
       {RawFormat(Dtype::kF16), MlxAffineFormat(8, 64, Dtype::kF32),
        MlxAffineFormat(3, 32, Dtype::kF16), MlxAffineFormat(5, 64, Dtype::kBf16),
        GgmlFormat(Codec::kQ4_0), GgmlFormat(Codec::kQ4_1), GgmlFormat(Codec::kQ5_0),
        GgmlFormat(Codec::kQ5_1), GgmlFormat(Codec::kQ8_0)}) {
    const size_t group = format.group_size == 0 ? 1 : format.group_size;
    const std::vector<float> clean = DequantizeRows(format, QuantizeRows(format, row, 256), 256, 1);
    for (float poison : {Limits::quiet_NaN(), -Limits::quiet_NaN(), Limits::infinity(),
                         -Limits::infinity(), Limits::max(), Limits::denorm_min(), 1e-38f}) {
      for (size_t poisoned : {size_t{1}, group}) {  // one element; the whole group, both signs
        SCOPED_TRACE(ToString(format) + " with " + std::to_string(poisoned) + " x " +
                     std::to_string(poison));
        std::vector<float> bad = row;
        for (size_t i = 0; i < poisoned; ++i) bad[128 + i] = i % 2 == 0 ? poison : -poison;
        std::vector<float> back = DequantizeRows(format, QuantizeRows(format, bad, 256), 256, 1);
        std::copy_n(clean.begin() + 128, group, back.begin() + 128);
        ExpectSameFloats(back, clean);
      }
    }
  }
}

}  // namespace
}  // namespace prefixd::quant
