#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/quant/golden.h"

namespace prefixd::quant {
namespace {

constexpr uint32_t kHalfSpace = 65536;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// IEEE 754 by its definition: sign, `exponent_bits` of exponent, `mantissa_bits` of mantissa.
double ValueOf(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * kInfinity;
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}
double HalfValue(uint32_t bits) { return ValueOf(bits, 5, 10); }
double Bf16Value(uint32_t bits) { return ValueOf(bits, 8, 7); }

void ExpectSameValue(double seen, double expected, uint32_t bits) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(seen)) << bits;
  } else {
    ASSERT_EQ(seen, expected) << bits;
    ASSERT_EQ(std::signbit(seen), std::signbit(expected)) << bits;
  }
}

TEST(HalfTest, EveryHalfWidensToItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < kHalfSpace; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float wide = HalfToFloat(half);
    ExpectSameValue(wide, HalfValue(bits), bits);
    const uint16_t expected = std::isnan(wide) ? static_cast<uint16_t>(half | 0x200) : half;
    ASSERT_EQ(FloatToHalf(wide), expected);
  }
}

TEST(HalfTest, EveryBf16WidensToItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < kHalfSpace; ++bits) {
    const uint16_t brain = static_cast<uint16_t>(bits);
    const float wide = Bf16ToFloat(brain);
    ExpectSameValue(wide, Bf16Value(bits), bits);
    const uint16_t expected = std::isnan(wide) ? static_cast<uint16_t>(brain | 0x40) : brain;
    ASSERT_EQ(FloatToBf16(wide), expected);
  }
}

// Between each two neighbours: their midpoint goes to the even one, a hair to either side to the
// nearer one. Infinity's neighbour is the largest finite value plus one more step.
void ExpectRoundsToNearestEven(uint16_t (*narrow)(float), double (*value_of)(uint32_t),
                               uint32_t infinity) {
  for (uint32_t low = 0; low < infinity; ++low) {
    const uint32_t high = low + 1;
    const double step = value_of(low == 0 ? 1 : low) - value_of(low == 0 ? 0 : low - 1);
    const double above = high == infinity ? value_of(low) + step : value_of(high);
    const float middle = static_cast<float>((value_of(low) + above) / 2);
    if (!std::isfinite(middle) || middle == 0) continue;
    const uint32_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(narrow(middle), even) << low;
    ASSERT_EQ(narrow(std::nextafterf(middle, 0)), low);
    ASSERT_EQ(narrow(std::nextafterf(middle, INFINITY)), high);
    ASSERT_EQ(narrow(-middle), even | 0x8000u);
  }
}

TEST(HalfTest, FloatsBetweenTwoHalvesRoundToTheNearestEven) {
  ExpectRoundsToNearestEven(FloatToHalf, HalfValue, 0x7c00);
  EXPECT_EQ(FloatToHalf(65519.996f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToHalf(1e-30f), 0x0000);
  EXPECT_EQ(FloatToHalf(-1e-30f), 0x8000);
}

TEST(HalfTest, FloatsBetweenTwoBf16RoundToTheNearestEven) {
  ExpectRoundsToNearestEven(FloatToBf16, Bf16Value, 0x7f80);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()), 0x7f80);
}

#if defined(__x86_64__)
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __builtin_cpu_supports("avx") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
         (c & bit_F16C) != 0;
}
__attribute__((target("f16c"))) uint16_t HardwareHalf(float value) {
  const __m128i halves = _mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT);
  return static_cast<uint16_t>(_mm_cvtsi128_si32(halves) & 0xffff);
}
__attribute__((target("f16c"))) float HardwareFloat(uint16_t half) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

TEST(HalfTest, BitsEqualTheProcessorsOwnWhereItHasF16c) {
  if (!HasF16c()) GTEST_SKIP() << "no F16C here";
  for (uint32_t bits = 0; bits < kHalfSpace; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(HalfToFloat(half)),
              std::bit_cast<uint32_t>(HardwareFloat(half)));
  }
  std::mt19937 random(16);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ASSERT_EQ(FloatToHalf(value), HardwareHalf(value)) << std::bit_cast<uint32_t>(value);
  }
}
#endif

TEST(HalfTest, ArraysConvertAtAnyAlignment) {
  const std::vector<float> values = {0.0f, -1.5f, 65504.0f, 1e-7f, 3.0f};
  for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    std::vector<std::byte> bytes(1 + values.size() * DtypeBytes(dtype) + 1, std::byte{0xa5});
    std::vector<float> back(values.size());
    NarrowFromFloat(dtype, values.data(), values.size(), bytes.data() + 1);
    WidenToFloat(dtype, bytes.data() + 1, values.size(), back.data());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(back[i], values[i], std::fabs(values[i]) / 256 + 1e-7);
    }
    EXPECT_EQ(bytes.front(), std::byte{0xa5});
    EXPECT_EQ(bytes.back(), std::byte{0xa5});
  }
}

}  // namespace
}  // namespace prefixd::quant
