// Splits a model's layers into groups so that a full page is about 1 MiB: what makes layer-ordered
// loading and SSD reads efficient. Versioned, because the groups are part of a space's identity.
#pragma once
#include <cstdint>
#include <vector>

#include "block/layer_group.h"

namespace prefixd::block {

inline constexpr uint32_t kSplitVersion = 1;

// `layers`: one single-layer LayerGroup per model layer, `layers` and `name` unset, in layer order.
// Layers that differ in anything are never grouped together; runs of equal layers are cut into the
// fewest groups of at most ~1 MiB (finest rung, block_tokens tokens), as equal in size as possible.
// Groups come back in order of their first layer, named "full.0", "sliding.0", "full.1", ...
std::vector<LayerGroup> SplitLayers(const std::vector<LayerGroup>& layers, uint32_t block_tokens);

}  // namespace prefixd::block
