// MLX's codes as float16 by arithmetic of float16 (AVX512-FP16), where the machine has it. Internal
// to kernels/.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prefixd::kernels {

// Whether DecodeHalfRow may be called.
bool HaveHalfArithmetic();

// For tests: false makes HaveHalfArithmetic() false until true is set again. Results are the same
// bits.
void AllowHalfArithmetic(bool allowed);

// One token: code * scale + bias, each product and sum rounded to float16, as quant/codec.h has it.
// There each is rounded to a float first. That changes no bit: the product is a float, and a sum
// that is rounded to 2 * 11 + 2 bits may be rounded again to 11 (Figueroa, "When is double rounding
// innocuous?", 1995).
struct HalfRow {
  const uint8_t* codes = nullptr;  // [groups][group_size]
  size_t groups = 0;
  size_t group_size = 0;              // a multiple of 32
  const std::byte* scales = nullptr;  // [groups] float16
  const std::byte* biases = nullptr;  // the same
};
// to: [groups][group_size] float16. stream: past the caches; `to` is aligned to 64 then.
void DecodeHalfRow(const HalfRow& row, bool stream, std::byte* to);

}  // namespace prefixd::kernels
