// ggml's blocks of 32 elements as its reference code (quantize_row_*_ref) computes them: f16 scale
// d, in q4_1 and q5_1 an f16 minimum m, in q5_0 and q5_1 a u32 of fifth bits, then the codes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "quant/row_codecs.h"

namespace prefixd::quant {
namespace {

constexpr size_t kHalfBlock = kGgmlBlock / 2;

struct BlockShape {
  bool has_minimum = false;
  bool has_fifth_bits = false;
};

BlockShape ShapeOf(Codec codec) {
  return {.has_minimum = codec == Codec::kQ4_1 || codec == Codec::kQ5_1,
          .has_fifth_bits = codec == Codec::kQ5_0 || codec == Codec::kQ5_1};
}

float Inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

// Truncates to [0, max_code]. Returns 0 for NaN and infinities (1 / d overflows for subnormal d),
// which is what ggml stores: the low byte of x86's conversion of them.
uint8_t TruncatedCode(float value, int max_code) {
  if (!(value >= 0 && value < 256)) return 0;
  return static_cast<uint8_t>(std::min(static_cast<int>(value), max_code));
}

// The same for q8_0, where codes are signed and halves round away from zero.
int8_t RoundedCode(float value) {
  const float rounded = std::round(value);
  if (!(rounded >= -128 && rounded <= 127)) return 0;
  return static_cast<int8_t>(rounded);
}

std::byte* PutHalf(float value, std::byte* to) {
  NarrowFromFloat(Dtype::kF16, &value, 1, to);
  return to + sizeof(uint16_t);
}

const std::byte* GetHalf(const std::byte* from, float* value) {
  WidenToFloat(Dtype::kF16, from, 1, value);
  return from + sizeof(uint16_t);
}

// q4_0 and q5_0: the first element of largest magnitude gets code 0, zero gets the middle code.
std::byte* EncodeCentered(std::span<const float> x, int max_code, uint8_t* codes, std::byte* to) {
  float widest = 0;
  for (float v : x) {
    if (std::fabs(widest) < std::fabs(v)) widest = v;
  }
  const float middle = 0.5f * static_cast<float>(max_code + 1);
  const float d = widest / -middle;
  const float inverse = Inverse(d);
  for (size_t i = 0; i < x.size(); ++i) {
    codes[i] = TruncatedCode(x[i] * inverse + (middle + 0.5f), max_code);
  }
  return PutHalf(d, to);
}

// q4_1 and q5_1: the minimum gets code 0.
std::byte* EncodeFromMinimum(std::span<const float> x, int max_code, uint8_t* codes,
                             std::byte* to) {
  float low = x[0];
  float high = x[0];
  for (float v : x) {
    if (v < low) low = v;
    if (v > high) high = v;
  }
  const float d = (high - low) / static_cast<float>(max_code);
  const float inverse = Inverse(d);
  for (size_t i = 0; i < x.size(); ++i) {
    codes[i] = TruncatedCode((x[i] - low) * inverse + 0.5f, max_code);
  }
  return PutHalf(low, PutHalf(d, to));
}

void EncodeNibbleBlock(BlockShape shape, std::span<const float> x, std::byte* to) {
  const int max_code = shape.has_fifth_bits ? 31 : 15;
  uint8_t codes[kGgmlBlock] = {};
  to = shape.has_minimum ? EncodeFromMinimum(x, max_code, codes, to)
                         : EncodeCentered(x, max_code, codes, to);
  if (shape.has_fifth_bits) {
    uint32_t fifth_bits = 0;
    for (size_t i = 0; i < kGgmlBlock; ++i) fifth_bits |= (codes[i] >> 4 & 1u) << i;
    std::memcpy(to, &fifth_bits, sizeof(fifth_bits));
    to += sizeof(fifth_bits);
  }
  // Split halves: element j in the low nibble, element j + 16 in the high one.
  for (size_t j = 0; j < kHalfBlock; ++j) {
    to[j] = static_cast<std::byte>((codes[j] & 15u) | (codes[j + kHalfBlock] & 15u) << 4);
  }
}

void DecodeNibbleBlock(BlockShape shape, const std::byte* from, std::span<float> x) {
  const int middle = shape.has_minimum ? 0 : shape.has_fifth_bits ? 16 : 8;
  float d = 0;
  float minimum = 0;
  uint32_t fifth_bits = 0;
  from = GetHalf(from, &d);
  if (shape.has_minimum) from = GetHalf(from, &minimum);
  if (shape.has_fifth_bits) {
    std::memcpy(&fifth_bits, from, sizeof(fifth_bits));
    from += sizeof(fifth_bits);
  }
  for (size_t i = 0; i < kGgmlBlock; ++i) {
    const uint32_t both = std::to_integer<uint32_t>(from[i % kHalfBlock]);
    const uint32_t nibble = i < kHalfBlock ? both & 15u : both >> 4;
    const int code = static_cast<int>(nibble | (fifth_bits >> i & 1u) << 4) - middle;
    const float product = static_cast<float>(code) * d;
    x[i] = shape.has_minimum ? product + minimum : product;  // adding +0 would lose the sign of -0
  }
}

void EncodeByteBlock(std::span<const float> x, std::byte* to) {
  float widest = 0;
  for (float v : x) {
    if (widest < std::fabs(v)) widest = std::fabs(v);
  }
  const float d = widest / 127.0f;
  const float inverse = Inverse(d);
  to = PutHalf(d, to);
  for (size_t i = 0; i < x.size(); ++i)
    to[i] = std::bit_cast<std::byte>(RoundedCode(x[i] * inverse));
}

void DecodeByteBlock(const std::byte* from, std::span<float> x) {
  float d = 0;
  from = GetHalf(from, &d);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(std::bit_cast<int8_t>(from[i])) * d;
  }
}

}  // namespace

uint32_t GgmlBlockBytes(Codec codec) {
  if (codec == Codec::kQ8_0) return 2 + kGgmlBlock;
  const BlockShape shape = ShapeOf(codec);
  return 2 + (shape.has_minimum ? 2 : 0) + (shape.has_fifth_bits ? 4 : 0) + kGgmlBlock / 2;
}

void QuantizeGgmlRow(Codec codec, std::span<const float> row, std::byte* to) {
  for (size_t i = 0; i < row.size(); i += kGgmlBlock, to += GgmlBlockBytes(codec)) {
    const std::span<const float> block = row.subspan(i, kGgmlBlock);
    if (codec == Codec::kQ8_0) {
      EncodeByteBlock(block, to);
    } else {
      EncodeNibbleBlock(ShapeOf(codec), block, to);
    }
  }
}

void DequantizeGgmlRow(Codec codec, const std::byte* from, std::span<float> row) {
  for (size_t i = 0; i < row.size(); i += kGgmlBlock, from += GgmlBlockBytes(codec)) {
    const std::span<float> block = row.subspan(i, kGgmlBlock);
    if (codec == Codec::kQ8_0) {
      DecodeByteBlock(from, block);
    } else {
      DecodeNibbleBlock(ShapeOf(codec), from, block);
    }
  }
}

}  // namespace prefixd::quant
