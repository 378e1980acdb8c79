// Stores carried layers in a space of a running prefixd, and loads them from it.
//
// Each call attaches as a worker of its own, and ends.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "client/cli/carried_layers.h"
#include "client/cli/carry.h"

namespace prefixd::cli {

struct StoredLayers {
  std::string space;    // hexadecimal
  uint32_t stored = 0;  // tokens that the cache lacked
};
// Stores all tokens of `carried`, packed as they are, in the rung of the space that all layers
// have. InvalidArgument names the layer that does not fit the space; Unavailable without a daemon.
absl::StatusOr<StoredLayers> StoreLayers(const CarryRequest& request, const SpaceSpec& spec,
                                         std::span<const uint32_t> tokens, const Carried& carried);

struct LoadedLayers {
  std::string space{};
  Carried carried{};
  bool values_transposed = false;  // the pages hold V transposed
};
// Loads what is cached of request.tokens, in the rung in which most tokens are cached. Returns no
// layers if no token is cached.
absl::StatusOr<LoadedLayers> LoadLayers(const CarryRequest& request, const SpaceSpec& spec);

}  // namespace prefixd::cli
