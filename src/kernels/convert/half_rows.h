// Decodes MLX's codes to float16 by float16 arithmetic (AVX512-FP16), where the machine has it.
// Internal to kernels/.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prefixd::kernels {

// Whether DecodeHalfRow may be called.
bool HaveHalfArithmetic();

// For tests: false makes HaveHalfArithmetic() false until true is set again. Results are the same
// bits.
void AllowHalfArithmetic(bool allowed);

// One token: code * scale + bias, each product and sum rounded to float16, as quant/codec.h does.
// That code rounds each to a float first, which changes no bit: the product fits a float, and a sum
// that is rounded to 2 * 11 + 2 bits may be rounded again to 11 (Figueroa, "When is double rounding
// innocuous?", 1995).
struct HalfRow {
  const uint8_t* codes = nullptr;  // [groups][group_size]
  size_t groups = 0;
  size_t group_size = 0;              // a multiple of 32
  const std::byte* scales = nullptr;  // [groups] float16
  const std::byte* biases = nullptr;  // the same
};
// to: [groups][group_size] float16. stream: writes past the caches; `to` is aligned to 64 then.
void DecodeHalfRow(const HalfRow& row, bool stream, std::byte* to);

}  // namespace prefixd::kernels
