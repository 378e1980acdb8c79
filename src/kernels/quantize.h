// Quantize and dequantize whole units: tensors of an engine to page bytes and back, byte-identical
// with quant/codec.h on every dispatch target.
//
// Thread-safe, no allocation that grows with the token count.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/format.h"

namespace prefixd::kernels {

// A strided tensor of one layer's K or V: [heads][tokens][dim], elements of a row contiguous.
struct TensorView {
  const std::byte* data = nullptr;
  quant::Dtype dtype = quant::Dtype::kF32;
  size_t head_stride = 0;   // in elements
  size_t token_stride = 0;  // in elements
};
struct MutableTensorView {
  std::byte* data = nullptr;
  quant::Dtype dtype = quant::Dtype::kF32;
  size_t head_stride = 0;
  size_t token_stride = 0;
};

// Where `heads` consecutive units of one layer's K (or V) stand in a page.
struct UnitRun {
  quant::Side side = quant::Side::kKey;
  uint32_t heads = 0;
  uint32_t dim = 0;
  uint32_t page_tokens = 0;  // geometry of the units
  uint32_t first_token = 0;  // slot of the tensor's token 0
  uint32_t tokens = 0;
  // True if the result is large, like a whole sequence's, and not read soon. It is then written
  // past the caches, which need not read what it overwrites. If the run covers its units, their
  // padding may be written too, as zeros.
  bool stream = false;
};

// Requires: quant::Validate(format, run.dim) is OK, first_token + tokens <= page_tokens.
void Quantize(const quant::TensorFormat& format, const TensorView& from, const UnitRun& run,
              std::byte* units);
void Dequantize(const quant::TensorFormat& format, const std::byte* units, const UnitRun& run,
                const MutableTensorView& to);

}  // namespace prefixd::kernels
