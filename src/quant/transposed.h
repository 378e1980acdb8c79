// Units of layout transposed: raw elements [dim][slots], a channel's tokens side by side.
//
// Pure functions, thread-safe, any alignment. Requires everywhere: codec kRaw.
#pragma once
#include "quant/unit.h"

namespace prefixd::quant {

// Returns the offset of one element in a unit of layout rows or transposed.
uint64_t RawElementOf(const UnitShape& shape, uint32_t token, uint32_t channel);

// CopyTokens if one unit is transposed, or both are.
void CopyTransposedTokens(const ConstUnitTokens& from, const UnitTokens& to, uint32_t count);

// Copy one token's row of elements into a transposed unit and out of it.
void StoreTransposedRow(const UnitShape& shape, const std::byte* row, uint32_t token,
                        std::byte* unit);
void LoadTransposedRow(const UnitShape& shape, const std::byte* unit, uint32_t token,
                       std::byte* row);

}  // namespace prefixd::quant
