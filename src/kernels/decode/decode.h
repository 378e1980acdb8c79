// Attention in mode kFast: multiplies few query rows with the stored codes as they are. Internal to
// kernels/; arguments have been checked.
//
// Thread-safe. Memory follows from the shape and the number of threads, never from the context.
#pragma once
#include <span>

#include "absl/status/status.h"

#include "kernels/attention.h"
#include "kernels/batch.h"
#include "kernels/decode/job.h"
#include "quant/block_table.h"

namespace prefixd::kernels {

// Returns whether this machine and the formats that `table` uses have a fast mode for the shape's
// number of query rows.
bool CanDecode(quant::BlockTable table, std::span<const quant::KvFormat> formats,
               const AttentionShape& shape);

// Reads blocks that several items' tables begin with once. Returns ResourceExhausted, with nothing
// written, when memory is short. Requires: at least one item, CanDecode of each.
absl::Status Decode(std::span<const BatchItem> items, std::span<const quant::KvFormat> formats,
                    const AttentionShape& shape);

}  // namespace prefixd::kernels
