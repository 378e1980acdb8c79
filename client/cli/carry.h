// prefixctl import and export: move KV between files of other engines and a running prefixd.
//
// Not for concurrent use. Each call attaches as a worker of its own, and ends.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
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

// What to import or export, and where.
struct CarryRequest {
  std::string server;
  std::string token_file{};  // as ClientOptions::token_file
  std::string salt{};        // import: salt of the space that the file names, if it has one
  std::chrono::milliseconds timeout{5000};
  std::string path;
  std::optional<SpaceSpec> spec{};  // import: none = as the file's metadata says
  std::vector<uint32_t> tokens{};   // import: empty = as the file's metadata says
  CarryFormat format = CarryFormat::kMlx;
  bool meta_state = false;  // export: write the format of mlx-lm before 0.32
  // export: a prompt cache of the same model. The file takes its classes, nesting and state shapes.
  // Empty = one cache for each layer; states are refused then.
  std::string like{};
  // export: the name of the model in the file, which mlx-lm compares with its own --model. Empty =
  // that of `like`, else that of the space.
  std::string model{};
  // Told after each step how much is done: import, tokens stored; export, layers read.
  std::function<void(uint64_t done, uint64_t whole)> on_step = [](uint64_t, uint64_t) {};
};

struct CarryReport {
  std::string space;     // hexadecimal
  uint32_t tokens = 0;   // in the file
  uint32_t asked = 0;    // export: tokens wanted
  uint32_t stored = 0;   // import: tokens that the cache lacked
  uint64_t bytes = 0;    // bytes of K, V and states in the file
  std::string format{};  // "mlx_affine/8/64/f16"
  std::string whose{};   // import: whose space it is, a part of a sentence; may be empty
};

// Stores the tokens of a file, packed as they are there. InvalidArgument if the file or the tokens
// do not fit; Unavailable without a daemon.
absl::StatusOr<CarryReport> Import(const CarryRequest& request);
// Writes what is cached of the tokens, with their ids. A file for mlx-lm also holds the identity,
// so that import needs no flags. Writes no file if no token is cached; `tokens` is 0 then.
absl::StatusOr<CarryReport> Export(const CarryRequest& request);

std::string ImportView(const CarryRequest& request, const CarryReport& report);
std::string ExportView(const CarryRequest& request, const CarryReport& report);
// Returns one line.
std::string CarryJson(const CarryReport& report);

}  // namespace prefixd::cli
