#include "kernels/convert/quantize_tokens.h"

#include <vector>

#include "quant/codec.h"

namespace prefixd::kernels {

void QuantizeByToken(const quant::UnitShape& shape, const TensorView& from, const UnitRun& run,
                     std::byte* units) {
  const size_t element = quant::DtypeBytes(from.dtype);
  const uint64_t unit_bytes = quant::LayoutOf(shape).unit_bytes;
  std::vector<float> row(run.dim);
  for (uint32_t head = 0; head < run.heads; ++head, units += unit_bytes) {
    for (uint32_t t = 0; t < run.tokens; ++t) {
      const size_t at = head * from.head_stride + t * from.token_stride;
      quant::WidenToFloat(from.dtype, from.data + at * element, run.dim, row.data());
      quant::QuantizeToken(shape, row, run.first_token + t, units);
    }
  }
}

void DequantizeByToken(const quant::UnitShape& shape, const std::byte* units, const UnitRun& run,
                       const MutableTensorView& to) {
  const size_t element = quant::DtypeBytes(to.dtype);
  const uint64_t unit_bytes = quant::LayoutOf(shape).unit_bytes;
  std::vector<float> row(run.dim);
  for (uint32_t head = 0; head < run.heads; ++head, units += unit_bytes) {
    for (uint32_t t = 0; t < run.tokens; ++t) {
      const size_t at = head * to.head_stride + t * to.token_stride;
      quant::DequantizeToken(shape, units, run.first_token + t, row);
      quant::NarrowFromFloat(to.dtype, row.data(), run.dim, to.data + at * element);
    }
  }
}

}  // namespace prefixd::kernels
