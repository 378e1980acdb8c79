// Reads what differs between the model families that this worker decodes, from their config.json.
//
// Pure functions, thread-safe. Errors are InvalidArgument and name the field.
#pragma once
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

#include "client/worker/model_config.h"

namespace prefixd::worker {

enum class Family { kLlama, kQwen2, kQwen3, kGemma3, kQwen3Next };

absl::StatusOr<Family> ReadFamily(const nlohmann::json& config);

// Refuses, by name, fields that this worker would compute wrongly.
absl::Status RefuseUnsupported(const nlohmann::json& config, Family family);

absl::Status ReadRope(const nlohmann::json& config, Family family, ModelConfig* model);

// Reads the fields that only this family has. Requires: the fields that all have are in `model`.
absl::Status ReadFamilyFields(const nlohmann::json& config, Family family, ModelConfig* model);

}  // namespace prefixd::worker
