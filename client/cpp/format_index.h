// Finds the rungs of formats by their index in the layers' lists. All layers of a space share the
// indexes: an index beyond a layer's last format means that last one.
//
// Pure functions.
#pragma once
#include <algorithm>
#include <cstdint>

#include "block/layer_group.h"

namespace prefixd::client {

// Requires: `group` is no state group.
inline uint32_t RungOf(const block::LayerGroup& group, uint32_t format) {
  return std::min(format, static_cast<uint32_t>(group.ladder.size()) - 1);
}

// Returns the mask of the rungs of a mask of formats; 0 for a state group.
inline uint64_t RungsOf(const block::LayerGroup& group, uint64_t formats) {
  const uint64_t all = (uint64_t{1} << group.ladder.size()) - 1;
  const uint64_t last = all ^ (all >> 1);
  return (formats & all) | ((formats & ~all) != 0 ? last : 0);
}

inline uint64_t MaskOf(uint32_t format) { return format < 64 ? uint64_t{1} << format : 0; }

}  // namespace prefixd::client
