// Carried layers into a space of a running prefixd, and out of it.
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
  uint32_t stored = 0;  // tokens that the cache had not
};
// All tokens of `carried`, as they are packed, in the rung of the space that all layers have.
// InvalidArgument naming the layer that the space has otherwise; Unavailable without a daemon.
absl::StatusOr<StoredLayers> StoreLayers(const CarryRequest& request, const SpaceSpec& spec,
                                         std::span<const uint32_t> tokens, const Carried& carried);

struct LoadedLayers {
  std::string space{};
  Carried carried{};
  bool values_transposed = false;  // the pages hold V so
};
// What is cached of request.tokens, in the rung that the most are cached in; of 0 tokens no layers.
absl::StatusOr<LoadedLayers> LoadLayers(const CarryRequest& request, const SpaceSpec& spec);

}  // namespace prefixd::cli
