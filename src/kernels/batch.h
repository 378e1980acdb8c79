// Attention of many sequences in one call: cascade attention.
//
// Thread-safe. Memory grows with the rows of the batch, never with the context.
#pragma once
#include <cstdint>
#include <span>

#include "absl/status/status.h"

#include "kernels/attention.h"
#include "quant/block_table.h"

namespace prefixd::kernels {

// One sequence's query rows.
struct BatchItem {
  quant::BlockTable table;
  const float* q = nullptr;
  float* out = nullptr;
  uint32_t first_position = 0;
};

// Computes all items, each with the same bits as Attend of that item alone. In mode kFast, when
// every item has a fast mode, blocks that several items' tables begin with (the same entries:
// units, tokens, page_tokens, format) are read once for all of these items. In any other case the
// items are computed one after the other.
// shape: that of every item; its first_position is ignored.
// Returns InvalidArgument, with nothing written, when Attend refuses an item: "batch: item 3: ...".
absl::Status AttendBatch(std::span<const BatchItem> items, std::span<const quant::KvFormat> formats,
                         const AttentionShape& shape);

}  // namespace prefixd::kernels
