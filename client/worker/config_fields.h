// Fields of a config.json, read by name or refused by name.
//
// Pure functions, thread-safe. Errors are InvalidArgument and say the field, what it holds and what
// this worker reads.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace prefixd::worker {

absl::Status Refuse(const std::string& field, const std::string& seen, const std::string& want);

// Returns the field, or null if it is absent or JSON null: checkpoints write both.
const nlohmann::json* Find(const nlohmann::json& config, const char* field);

// Returns a number from 1 to 2^24. The functions named ...Or return `otherwise` for an absent
// field.
absl::StatusOr<uint32_t> Count(const nlohmann::json& config, const char* field);
absl::StatusOr<uint32_t> CountOr(const nlohmann::json& config, const char* field,
                                 uint32_t otherwise);
absl::StatusOr<double> PositiveOr(const nlohmann::json& config, const char* field,
                                  double otherwise);
absl::StatusOr<bool> FlagOr(const nlohmann::json& config, const char* field, bool otherwise);

// Accepts an absent field, or one that holds `wanted`; refuses others.
absl::Status WantAbsentOr(const nlohmann::json& config, const char* field,
                          const nlohmann::json& wanted);
absl::Status WantAbsent(const nlohmann::json& config, const char* field);  // also accepts false

}  // namespace prefixd::worker
