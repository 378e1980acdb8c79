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

// The same bits as Attend of every item by itself. In mode fast, when every item has a fast mode,
// blocks that stand at the front of several items' tables (the same entries: units, tokens, format)
// are read once for all of them; in any other case the items are computed one after the other.
// shape: of every item; its first_position does not count.
// InvalidArgument, nothing written, when an item is one that Attend refuses: "batch: item 3: ...".
absl::Status AttendBatch(std::span<const BatchItem> items, std::span<const quant::KvFormat> formats,
                         const AttentionShape& shape);

}  // namespace prefixd::kernels
