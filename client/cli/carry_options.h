// The command lines of prefixctl import and export.
//
//   prefixctl import cache.safetensors --identity model.json --tokens-file ids.json
//   imported 300 tokens in mlx_affine/8/64/bf16 (9.3 MiB) of cache.safetensors into space
//   3f2a9c0d11e4: 300 stored, 0 known already
//
//   prefixctl export cache.safetensors --space 3f2a --tokens-file ids.json
//   exported 300 of 320 tokens in mlx_affine/8/64/bf16 (9.3 MiB) of space 3f2a9c0d11e4 to
//   cache.safetensors
//
//   prefixctl import slot.bin --format llama.cpp --identity model.json
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/options.h"

namespace prefixd::cli {

// Flag values as CLI11 reads them, not yet checked.
struct CarryTexts {
  std::string tokens_file;
  std::string format;
  std::string style;
};

void DeclareCarry(CLI::App& app, Options* options, CarryTexts* texts);
// Checks `texts` and fills `options`. Does nothing for other commands. InvalidArgument names the
// flag.
absl::Status ReadCarry(const CarryTexts& texts, Options* options);

// Returns the text of a file. InvalidArgument, naming flag and file, if it cannot be read.
absl::StatusOr<std::string> ReadTextFile(const char* flag, const std::string& path);

}  // namespace prefixd::cli
