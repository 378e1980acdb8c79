// prefixctl import and export: KV between files of other engines and a running prefixd.
//
// Not for concurrent use; each call attaches as a worker of its own, and ends.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "prefixd/client.h"

namespace prefixd::cli {

enum class CarryFormat {
  kMlx,    // mlx-lm's save_prompt_cache
  kLlama,  // llama.cpp's llama_state_seq_save_file
};

// Where, what and whose.
struct CarryRequest {
  std::string server;
  std::string token_file{};  // of ClientOptions
  std::string salt{};        // import: of the space that the file names, where that has one
  std::chrono::milliseconds timeout{5000};
  std::string path;
  std::optional<SpaceSpec> spec{};  // import: none = what the file's metadata says
  std::vector<uint32_t> tokens{};   // import: none = what the file's metadata says
  CarryFormat format = CarryFormat::kMlx;
  bool meta_state = false;  // export: as mlx-lm before 0.32 reads it
  // export: a prompt cache of the same model, whose classes, nesting and shapes of states the file
  // gets. Empty: a cache a layer; there may be no states then.
  std::string like{};
};

struct CarryReport {
  std::string space;     // hexadecimal
  uint32_t tokens = 0;   // in the file
  uint32_t asked = 0;    // export: tokens wanted
  uint32_t stored = 0;   // import: tokens that the cache had not
  uint64_t bytes = 0;    // of K and V in the file
  std::string format{};  // "mlx_affine/8/64/f16"
};

// Stores the tokens of a file, as they are packed there. InvalidArgument for a file,
// or tokens, that do not fit; Unavailable without a daemon.
absl::StatusOr<CarryReport> Import(const CarryRequest& request);
// Writes what is cached of the tokens; with their ids and, in mlx-lm's, the identity, so that such
// a file can be imported by itself. No file is written when tokens is 0.
absl::StatusOr<CarryReport> Export(const CarryRequest& request);

std::string ImportView(const CarryRequest& request, const CarryReport& report);
std::string ExportView(const CarryRequest& request, const CarryReport& report);
// One line.
std::string CarryJson(const CarryReport& report);

}  // namespace prefixd::cli
