// MLX mode "affine" as its CPU backend computes it. MLX's manual describes another rule (bias =
// min, scale > 0); the bytes here are those of MLX's code.
#include <cmath>
#include <limits>

#include "quant/row_codecs.h"

namespace prefixd::quant {
namespace {

constexpr float kSmallestScale = 1e-7f;

struct Affine {
  float scale = 0;  // negative when the positive edge dominates
  float bias = 0;
};

// The element of largest magnitude gets code 0 and decodes to `bias`; zero gets a code too.
Affine FitAffine(std::span<const float> group, float max_code) {
  float low = std::numeric_limits<float>::infinity();
  float high = -low;
  for (float x : group) {
    if (x < low) low = x;
    if (x > high) high = x;
  }
  const bool negative_edge = std::fabs(low) > std::fabs(high);
  const float step = std::fmax((high - low) / max_code, kSmallestScale);
  const float edge = negative_edge ? low : high;
  const float scale = negative_edge ? step : -step;
  const float zero_code = std::rint(edge / scale);
  if (zero_code == 0) return {scale, 0};
  return {edge / zero_code, edge};
}

// Returns 0 for NaN, so that the conversion to an integer is always defined.
uint32_t CodeOf(float x, Affine affine, float max_code) {
  const float code = std::rint((x - affine.bias) / affine.scale);
  if (!(code > 0)) return 0;
  return static_cast<uint32_t>(code < max_code ? code : max_code);
}

// One little-endian bit stream per row: element i is in bits [i * width, (i + 1) * width).
class BitWriter {
 public:
  BitWriter(std::byte* to, uint32_t width) : to_(to), width_(width) {}
  void Put(uint32_t code) {
    pending_ |= code << pending_bits_;
    for (pending_bits_ += width_; pending_bits_ >= 8; pending_bits_ -= 8, pending_ >>= 8) {
      *to_++ = static_cast<std::byte>(pending_ & 0xff);
    }
  }

 private:
  std::byte* to_;
  const uint32_t width_;
  uint32_t pending_ = 0;
  uint32_t pending_bits_ = 0;  // < 8 between calls
};

class BitReader {
 public:
  BitReader(const std::byte* from, uint32_t width) : from_(from), width_(width) {}
  uint32_t Get() {
    while (pending_bits_ < width_) {
      pending_ |= std::to_integer<uint32_t>(*from_++) << pending_bits_;
      pending_bits_ += 8;
    }
    const uint32_t code = pending_ & ((1u << width_) - 1);
    pending_ >>= width_;
    pending_bits_ -= width_;
    return code;
  }

 private:
  const std::byte* from_;
  const uint32_t width_;
  uint32_t pending_ = 0;
  uint32_t pending_bits_ = 0;
};

float RoundTo(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::kF16:
      return HalfToFloat(FloatToHalf(value));
    case Dtype::kBf16:
      return Bf16ToFloat(FloatToBf16(value));
    case Dtype::kF32:
      break;
  }
  return value;
}

}  // namespace

void QuantizeMlxAffineRow(const TensorFormat& format, std::span<const float> row, RowPlace to) {
  const float max_code = static_cast<float>((1u << format.bits) - 1);
  const size_t parameter_bytes = DtypeBytes(format.dtype);
  BitWriter codes(to.codes, format.bits);
  for (size_t begin = 0; begin < row.size(); begin += format.group_size) {
    const std::span<const float> group = row.subspan(begin, format.group_size);
    const Affine affine = FitAffine(group, max_code);
    for (float x : group) codes.Put(CodeOf(x, affine, max_code));
    const size_t at = begin / format.group_size * parameter_bytes;
    NarrowFromFloat(format.dtype, &affine.scale, 1, to.scales + at);
    NarrowFromFloat(format.dtype, &affine.bias, 1, to.biases + at);
  }
}

void DequantizeMlxAffineRow(const TensorFormat& format, ConstRowPlace from, std::span<float> row) {
  const size_t parameter_bytes = DtypeBytes(format.dtype);
  BitReader codes(from.codes, format.bits);
  for (size_t begin = 0; begin < row.size(); begin += format.group_size) {
    const size_t at = begin / format.group_size * parameter_bytes;
    Affine affine;
    WidenToFloat(format.dtype, from.scales + at, 1, &affine.scale);
    WidenToFloat(format.dtype, from.biases + at, 1, &affine.bias);
    for (float& x : row.subspan(begin, format.group_size)) {
      // Two roundings, like MLX's two graph operations.
      const float product = RoundTo(format.dtype, static_cast<float>(codes.Get()) * affine.scale);
      x = RoundTo(format.dtype, product + affine.bias);
    }
  }
}

}  // namespace prefixd::quant
