// Files of other engines that hold the KV of one sequence: mlx-lm's prompt caches and llama.cpp's
// sequence states.
//
// Thread-safe.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/carried_layers.h"
#include "client/cli/carry.h"

namespace prefixd::cli {

struct CarriedFile {
  Carried carried{};
  std::vector<uint32_t> tokens{};   // token ids that the file names; may be empty
  std::optional<SpaceSpec> spec{};  // identity that the file names, if any
  bool values_transposed = false;   // V as llama.cpp stores it without flash attention
};

// Reads the file at request.path. A llama.cpp state does not hold its heads and dims: they come
// from request.spec. InvalidArgument names the file, what was found and what is wanted.
absl::StatusOr<CarriedFile> ReadCarriedFile(const CarryRequest& request);
// Replaces the file at request.path. Requires: `file.spec` and its layers are set.
absl::Status WriteCarriedFile(const CarryRequest& request, const CarriedFile& file);

}  // namespace prefixd::cli
