// MLX modes "mxfp4", "mxfp8" and "nvfp4": codes that are small floats, and for each group a scale
// that is a one-byte float.
//
// Encoding follows MLX's CPU backend for float32 input at the commit that src/README.md names. An
// e8m0 scale is rounded to the nearest exponent (later versions take the ceiling). A tie of e2m1
// goes to the smaller magnitude (MLX's argmin takes the first of the two nearest), and what rounds
// to zero is +0. e4m3 rounds to nearest even and keeps the sign of zero. MLX's GPU kernels round
// ties of e2m1 to even. Two cases that MLX's CPU backend gets wrong are encoded sensibly: a group
// below 6 * 2^-127 gets the e8m0 byte 0 (MLX's wraps around), and values of more than 2^24 scales
// saturate (MLX's argmin takes them for 0). Bytes that another version or backend wrote decode the
// same.
//
// Decoding is exact: a float holds every product of a code and a scale.
#include <bit>
#include <cmath>
#include <limits>

#include "quant/row_codecs.h"

namespace prefixd::quant {
namespace {

constexpr float kLargestE2m1 = 6;
constexpr float kLargestE4m3 = 448;

constexpr float kE2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

float E2m1ToFloat(uint32_t code) { return (code & 8) != 0 ? -kE2m1[code & 7] : kE2m1[code]; }

uint32_t FloatToE2m1(float value) {
  constexpr float kBorders[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
  const float magnitude = std::fabs(value);
  uint32_t code = 0;
  while (code < 7 && magnitude > kBorders[code]) ++code;
  return code != 0 && value < 0 ? code | 8 : code;
}

// e4m3 has no infinity; 0x7f is NaN.
float E4m3ToFloat(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                    : std::ldexp(static_cast<float>(8 + mantissa), static_cast<int>(exponent) - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Saturates at 448, also for NaN.
uint32_t FloatToE4m3(float value) {
  const uint32_t sign = std::signbit(value) ? 0x80 : 0;
  float magnitude = std::fabs(value);
  if (!(magnitude < kLargestE4m3)) magnitude = kLargestE4m3;
  if (magnitude < 0x1p-6f) return sign | static_cast<uint32_t>(std::rint(magnitude * 512));
  uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffff + (bits >> 20 & 1);  // 3 of 23 bits stay, ties to even
  return sign | ((bits >> 20) - (uint32_t{127 - 7} << 3));
}

// 2^(code - 127); 0xff is infinity.
float E8m0ToFloat(uint32_t code) {
  if (code == 0xff) return std::numeric_limits<float>::infinity();
  return std::ldexp(1.0f, static_cast<int>(code) - 127);
}

// Rounds to the power of two nearest by logarithm, which may be below the value. 0 becomes 1.
uint32_t FloatToE8m0(float value) {
  if (!(value > 0)) return 127;
  int exponent = 0;
  const float mantissa = std::frexp(value, &exponent);  // in [1/2, 1)
  constexpr float kSqrtHalf = 0x1.6a09e6p-1f;           // rounded down; no float is the root itself
  const int nearest = mantissa > kSqrtHalf ? exponent : exponent - 1;
  return nearest < -127 ? 0 : static_cast<uint32_t>(nearest < 127 ? nearest + 127 : 254);
}

float LargestOf(std::span<const float> group) {
  float largest = 0;
  for (float x : group) largest = std::fmax(largest, std::fabs(x));
  return largest;
}

uint32_t ScaleOf(Codec codec, std::span<const float> group) {
  const float largest = LargestOf(group);
  if (codec == Codec::kNvFp4) return FloatToE4m3(largest / kLargestE2m1);
  return FloatToE8m0(largest / (codec == Codec::kMxFp4 ? kLargestE2m1 : kLargestE4m3));
}

float ScaleToFloat(Codec codec, uint32_t code) {
  return codec == Codec::kNvFp4 ? E4m3ToFloat(code) : E8m0ToFloat(code);
}

}  // namespace

void QuantizeBlockFloatRow(const TensorFormat& format, std::span<const float> row, RowPlace to) {
  for (size_t begin = 0; begin < row.size(); begin += format.group_size) {
    const std::span<const float> group = row.subspan(begin, format.group_size);
    const uint32_t scale_code = ScaleOf(format.codec, group);
    to.scales[begin / format.group_size] = static_cast<std::byte>(scale_code);
    const float scale = ScaleToFloat(format.codec, scale_code);
    const auto scaled = [&](size_t i) { return scale == 0 ? 0 : group[i] / scale; };
    if (format.bits == 8) {
      for (size_t i = 0; i < group.size(); ++i) {
        to.codes[begin + i] = static_cast<std::byte>(FloatToE4m3(scaled(i)));
      }
      continue;
    }
    for (size_t i = 0; i < group.size(); i += 2) {
      to.codes[(begin + i) / 2] =
          static_cast<std::byte>(FloatToE2m1(scaled(i)) | FloatToE2m1(scaled(i + 1)) << 4);
    }
  }
}

void DequantizeBlockFloatRow(const TensorFormat& format, ConstRowPlace from, std::span<float> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const uint32_t scale_code = std::to_integer<uint32_t>(from.scales[i / format.group_size]);
    const float scale = ScaleToFloat(format.codec, scale_code);
    if (format.bits == 8) {
      row[i] = E4m3ToFloat(std::to_integer<uint32_t>(from.codes[i])) * scale;
    } else {
      const uint32_t both = std::to_integer<uint32_t>(from.codes[i / 2]);
      row[i] = E2m1ToFloat(i % 2 == 0 ? both & 15 : both >> 4) * scale;
    }
  }
}

}  // namespace prefixd::quant
