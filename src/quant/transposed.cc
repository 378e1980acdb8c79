#include "quant/transposed.h"

#include <cstring>

namespace prefixd::quant {

uint64_t RawElementOf(const UnitShape& shape, uint32_t token, uint32_t channel) {
  const uint64_t element = shape.format.layout == Layout::kTransposed
                               ? uint64_t{channel} * shape.page_tokens + token
                               : uint64_t{token} * shape.dim + channel;
  return element * DtypeBytes(shape.format.dtype);
}

void CopyTransposedTokens(const ConstUnitTokens& from, const UnitTokens& to, uint32_t count) {
  const bool runs = from.shape.format.layout == to.shape.format.layout;
  const uint32_t run = runs ? count : 1;
  const size_t bytes = size_t{run} * DtypeBytes(from.shape.format.dtype);
  for (uint32_t channel = 0; channel < from.shape.dim; ++channel) {
    for (uint32_t done = 0; done < count; done += run) {
      std::memcpy(to.unit + RawElementOf(to.shape, to.begin + done, channel),
                  from.unit + RawElementOf(from.shape, from.begin + done, channel), bytes);
    }
  }
}

void StoreTransposedRow(const UnitShape& shape, const std::byte* row, uint32_t token,
                        std::byte* unit) {
  const size_t bytes = DtypeBytes(shape.format.dtype);
  for (uint32_t channel = 0; channel < shape.dim; ++channel) {
    std::memcpy(unit + RawElementOf(shape, token, channel), row + channel * bytes, bytes);
  }
}

void LoadTransposedRow(const UnitShape& shape, const std::byte* unit, uint32_t token,
                       std::byte* row) {
  const size_t bytes = DtypeBytes(shape.format.dtype);
  for (uint32_t channel = 0; channel < shape.dim; ++channel) {
    std::memcpy(row + channel * bytes, unit + RawElementOf(shape, token, channel), bytes);
  }
}

}  // namespace prefixd::quant
