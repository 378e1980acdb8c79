// Splits a model's layers into groups so that a full page is about 1 MiB: what makes layer-ordered
// loading and SSD reads efficient. Versioned, because the groups are part of a space's identity.
#pragma once
#include <cstdint>
#include <vector>

#include "block/layer_group.h"

namespace prefixd::block {

inline constexpr uint32_t kSplitVersion = 1;

// `layers`: one LayerGroup per model layer, `layers` and `name` unset, in layer order (state_bytes:
// of that layer). Layers that differ in anything are never grouped together; equal layers, adjacent
// or not, are cut in layer order into the fewest groups of at most 1 MiB (finest rung, block_tokens
// tokens; state: one snapshot), as equal in size as possible, larger ones first. A layer above 1
// MiB is a group of its own. When that makes more than kMaxGroups groups the target doubles until
// it does not. Groups come back in order of their first layer, named "full.0", "sliding.0",
// "full.1", "state.0", ... Requires: each layer would pass Validate once it has a name and an
// index; block_tokens > 0.
std::vector<LayerGroup> SplitLayers(const std::vector<LayerGroup>& layers, uint32_t block_tokens);

}  // namespace prefixd::block
