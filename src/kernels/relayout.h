// Copies packed rows, as MLX's and ggml's tensors have them, into and out of units of any layout:
// the same codes, scales and biases in another order, never quantized again.
//
// Thread-safe, any alignment. Working memory does not grow with the token count. The SIMD target is
// chosen at run time; quant/unit.h is the scalar reference.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/quantize.h"
#include "quant/format.h"

namespace prefixd::kernels {

// Packed rows of one layer's K or V, [heads][tokens]; strides in bytes. ggml's rows are `codes`
// alone, since their blocks carry the scales.
struct PackedRows {
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  size_t codes_head_stride = 0, codes_token_stride = 0;
  size_t scales_head_stride = 0, scales_token_stride = 0;  // of biases too
};
struct MutablePackedRows {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  std::byte* biases = nullptr;
  size_t codes_head_stride = 0, codes_token_stride = 0;
  size_t scales_head_stride = 0, scales_token_stride = 0;
};

// Copy packed rows into units of `format` and out of them. Bytes of other tokens are untouched.
// Requires: quant::Validate(format, run.dim) is OK, first_token + tokens <= page_tokens; rows and
// units do not overlap.
void StorePacked(const quant::TensorFormat& format, const PackedRows& from, const UnitRun& run,
                 std::byte* units);
void LoadPacked(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
                const MutablePackedRows& to);

// Converts the tokens of `run` between units in rows and tiled units of the same page_tokens;
// `format` says which of them `units` are. Requires: quant::HasTiled(format).
void Relayout(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
              std::byte* to);

}  // namespace prefixd::kernels
