// Attention over a layer's blocks, with what its group says of it.
//
// Thread-safe.
#pragma once
#include <span>

#include "block/layer_group.h"
#include "prefixd/attention.h"

namespace prefixd::client {

// As Sequence::Attend().
Status AttendLayer(const block::LayerGroup& group, std::span<const BlockTableEntry> table,
                   const float* q, float* out, AttendOptions options);

}  // namespace prefixd::client
