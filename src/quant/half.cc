#include <bit>
#include <cmath>
#include <cstring>

#include "quant/codec.h"

namespace prefixd::quant {
namespace {

constexpr uint32_t kFloatInfinity = 0x7f800000;
constexpr uint32_t kSmallestNormalHalf = 0x38800000;  // 2^-14 as float bits
constexpr uint32_t kHalfOverflow = 0x477ff000;        // 65520: this and above rounds to infinity
constexpr uint32_t kHalfUnderflow = 0x33000000;       // 2^-25: this and below rounds to zero

// Drops the low `shift` bits, rounding to nearest even.
uint32_t ShiftRightRounded(uint32_t value, uint32_t shift) {
  const uint32_t kept = value >> shift;
  const uint32_t dropped = value & ((1u << shift) - 1);
  const uint32_t tie = 1u << (shift - 1);
  const bool up = dropped > tie || (dropped == tie && (kept & 1) != 0);
  return kept + (up ? 1 : 0);
}

// Converts float bits without the sign to half bits without the sign.
uint32_t HalfMagnitude(uint32_t magnitude) {
  if (magnitude > kFloatInfinity) return 0x7e00 | ((magnitude >> 13) & 0x1ff);
  if (magnitude >= kHalfOverflow) return 0x7c00;
  // A carry out of the mantissa increments the exponent, which is the right result of rounding up.
  if (magnitude >= kSmallestNormalHalf) return ShiftRightRounded(magnitude - (112u << 23), 13);
  if (magnitude <= kHalfUnderflow) return 0;
  const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  return ShiftRightRounded(mantissa, 126 - (magnitude >> 23));
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa == 0 ? 0 : 0x400000u;
    return std::bit_cast<float>(sign | kFloatInfinity | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | HalfMagnitude(bits & 0x7fffffff));
}

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void WidenToFloat(Dtype dtype, const std::byte* from, size_t count, float* to) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i * sizeof(bits), sizeof(bits));
    to[i] = dtype == Dtype::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
}

void NarrowFromFloat(Dtype dtype, const float* from, size_t count, std::byte* to) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    const uint16_t bits = dtype == Dtype::kF16 ? FloatToHalf(from[i]) : FloatToBf16(from[i]);
    std::memcpy(to + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace prefixd::quant
