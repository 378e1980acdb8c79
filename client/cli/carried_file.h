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
  std::vector<uint32_t> tokens{};   // of which it says that it is; may be empty
  std::optional<SpaceSpec> spec{};  // whose it says that it is
  bool values_transposed = false;   // llama.cpp without flash attention
};

// The file at request.path. A llama.cpp state says neither heads nor dims: request.spec has them.
// InvalidArgument naming the file, what was seen and what is wanted.
absl::StatusOr<CarriedFile> ReadCarriedFile(const CarryRequest& request);
// Replaces request.path. `file.spec` and its layers are set.
absl::Status WriteCarriedFile(const CarryRequest& request, const CarriedFile& file);

}  // namespace prefixd::cli
