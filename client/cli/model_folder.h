// The identity of a model's folder, as prefixd.mlx.server opens its space: what `prefixctl import
// --identity` wants of a prompt cache that mlx-lm saved.
//
// Thread-safe. Reads the weights whole, unless their digest is remembered (DigestCheckpoint).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

#include "prefixd/client.h"

namespace prefixd::cli {

// Returns the identity without layers: model, weights, tokenizer, rope and, if `adapter` is not
// empty, the adapter of that folder. InvalidArgument: config.json is missing or says something that
// this function does not know how to read; the Python package does.
// `on_read` is told from time to time how many bytes of the weights were read, of how many.
absl::StatusOr<SpaceSpec> IdentityOfFolder(
    const std::string& folder, const std::string& adapter,
    const std::function<void(uint64_t read, uint64_t whole)>& on_read = {});

// Returns JSON as Python's json.dumps(value, sort_keys=True) writes it. `json` is the text of the
// value. InvalidArgument if it is no JSON.
absl::StatusOr<std::string> PythonDump(const std::string& json);

}  // namespace prefixd::cli
