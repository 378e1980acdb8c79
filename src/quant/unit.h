// Reads and writes tokens of a unit in any layout: scalar reference, like quant/codec.h.
//
// Pure functions, thread-safe, any alignment of units. They leave bytes of other tokens and padding
// untouched: the caller zeroes a new unit first.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/codec.h"
#include "quant/format.h"

namespace prefixd::quant {

// What a unit's bytes mean. Requires everywhere: Validate(format, dim) is OK.
struct UnitShape {
  TensorFormat format;
  Side side = Side::kKey;
  uint32_t dim = 0;
  uint32_t page_tokens = 0;
};
UnitLayout LayoutOf(const UnitShape& unit);

// Requires: token < page_tokens, row.size() == dim.
void QuantizeToken(const UnitShape& shape, std::span<const float> row, uint32_t token,
                   std::byte* unit);
void DequantizeToken(const UnitShape& shape, const std::byte* unit, uint32_t token,
                     std::span<float> row);

// Copy one token's packed row, in MLX's or ggml's own order, into and out of a unit.
void StoreRow(const UnitShape& shape, const ConstRowPlace& row, uint32_t token, std::byte* unit);
void LoadRow(const UnitShape& shape, const std::byte* unit, uint32_t token, const RowPlace& row);

// Copies `count` tokens. Codes, scales and biases stay as they are, never re-quantized. The units
// may differ in page_tokens and in layout, so this also converts between layouts. They must not
// overlap. Requires: the shapes are otherwise equal; begin + count <= page_tokens on both sides.
struct ConstUnitTokens {
  UnitShape shape;
  const std::byte* unit = nullptr;
  uint32_t begin = 0;
};
struct UnitTokens {
  UnitShape shape;
  std::byte* unit = nullptr;
  uint32_t begin = 0;
};
void CopyTokens(const ConstUnitTokens& from, const UnitTokens& to, uint32_t count);

}  // namespace prefixd::quant
