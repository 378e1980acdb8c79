// Splits a model's layers into groups so that a full page is about 1 MiB, which makes layer-ordered
// loading and SSD reads efficient. Versioned, because groups are part of a space's identity.
#pragma once
#include <cstdint>
#include <vector>

#include "block/layer_group.h"

namespace prefixd::block {

inline constexpr uint32_t kSplitVersion = 1;

// `layers` has one LayerGroup per model layer, in layer order, with `layers` and `name` unset and
// state_bytes of that layer alone. Layers that differ in anything are never grouped together. Equal
// layers, adjacent or not, are cut in layer order into the fewest groups of at most 1 MiB, as equal
// in size as possible, larger ones first. The size is that of a page of block_tokens tokens in the
// finest rung, or of one snapshot of a state. A layer above 1 MiB is a group of its own. If that
// makes more than kMaxGroups groups, the target doubles until it does not, or until each set of
// equal layers is one group. Groups are returned in order of their first layer, named "full.0",
// "sliding.0", "full.1", "state.0", ... Requires: each layer would pass Validate if it had a name
// and an index; block_tokens > 0.
std::vector<LayerGroup> SplitLayers(const std::vector<LayerGroup>& layers, uint32_t block_tokens);

}  // namespace prefixd::block
