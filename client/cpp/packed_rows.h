// Rows of packed bytes between an engine's tensors and the units of a page.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>

#include "prefixd/client.h"
#include "quant/format.h"

namespace prefixd::client {

// `heads` consecutive units of one layer's K or V, and the tokens of them that are meant.
struct UnitRows {
  quant::TensorFormat format;
  uint32_t heads = 0;
  uint32_t dim = 0;
  uint32_t page_tokens = 0;    // geometry of the units
  uint32_t first_slot = 0;     // of the tokens, in the units
  uint32_t first_row = 0;      // of the tokens, in the engine's tensor
  uint32_t tokens = 0;         // to copy
  uint32_t tensor_tokens = 0;  // rows of one head of a dense tensor
};

// Whether the view has every part that the format has.
bool IsComplete(const quant::TensorFormat& format, const PackedView& view);
bool IsComplete(const quant::TensorFormat& format, const MutablePackedView& view);

void CopyIn(const PackedView& from, const UnitRows& rows, std::byte* units);
void CopyOut(const std::byte* units, const UnitRows& rows, const MutablePackedView& to);

}  // namespace prefixd::client
