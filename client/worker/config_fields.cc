#include "client/worker/config_fields.h"

#include <cmath>

#include "absl/status/status.h"

namespace prefixd::worker {
namespace {

using nlohmann::json;

constexpr int64_t kMaxCount = 1 << 24;

}  // namespace

absl::Status Refuse(const std::string& field, const std::string& seen, const std::string& want) {
  return absl::InvalidArgumentError(
      absl::StrCat("model config: ", field, " is ", seen, ", this worker reads ", want));
}

const json* Find(const json& config, const char* field) {
  const auto found = config.find(field);
  return found == config.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<uint32_t> Count(const json& config, const char* field) {
  const json* value = Find(config, field);
  if (value == nullptr) return Refuse(field, "absent", "a count");
  if (!value->is_number_integer() || value->get<int64_t>() < 1 ||
      value->get<int64_t>() > kMaxCount) {
    return Refuse(field, value->dump(), absl::StrCat("a count from 1 to ", kMaxCount));
  }
  return value->get<uint32_t>();
}

absl::StatusOr<uint32_t> CountOr(const json& config, const char* field, uint32_t otherwise) {
  if (Find(config, field) == nullptr) return otherwise;
  return Count(config, field);
}

absl::StatusOr<double> PositiveOr(const json& config, const char* field, double otherwise) {
  const json* value = Find(config, field);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
    return Refuse(field, value->dump(), "a positive number");
  }
  return value->get<double>();
}

absl::Status WantAbsentOr(const json& config, const char* field, const json& wanted) {
  const json* value = Find(config, field);
  if (value == nullptr || *value == wanted) return absl::OkStatus();
  return Refuse(field, value->dump(), wanted.dump());
}

absl::Status WantAbsent(const json& config, const char* field) {
  const json* value = Find(config, field);
  if (value == nullptr || *value == json(false)) return absl::OkStatus();
  return Refuse(field, value->dump(), "checkpoints without it");
}

absl::StatusOr<bool> FlagOr(const json& config, const char* field, bool otherwise) {
  const json* value = Find(config, field);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return Refuse(field, value->dump(), "true or false");
  return value->get<bool>();
}

}  // namespace prefixd::worker
