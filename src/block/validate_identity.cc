#include <cmath>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/identity_fields.h"
#include "block/space_identity.h"

namespace prefixd::block {
namespace {

absl::Status Bad(const char* field, const std::string& seen, const std::string& limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("space identity: ", field, " is ", seen, ", ", limit));
}

absl::Status CheckText(const char* field, const std::string& text, size_t least, size_t most) {
  if (text.size() >= least && text.size() <= most) return absl::OkStatus();
  return Bad(field, absl::StrCat(text.size(), " bytes long"),
             absl::StrCat("must be ", least, " to ", most));
}

absl::Status CheckRange(const char* field, uint64_t seen, uint64_t least, uint64_t most) {
  if (seen >= least && seen <= most) return absl::OkStatus();
  return Bad(field, absl::StrCat(seen), absl::StrCat("must be ", least, " to ", most));
}

absl::Status CheckModel(const SpaceIdentity& identity) {
  PREFIXD_RETURN_IF_ERROR(CheckText("model", identity.model, 1, kMaxModelBytes));
  PREFIXD_RETURN_IF_ERROR(CheckText("tenant", identity.tenant, 0, kMaxTenantBytes));
  PREFIXD_RETURN_IF_ERROR(CheckText("salt", identity.salt, 0, kMaxTenantBytes));
  PREFIXD_RETURN_IF_ERROR(CheckRange("role", static_cast<uint64_t>(identity.role), 1, 2));
  if (identity.role == Role::kTarget && identity.target_digest != base::Digest256{}) {
    return Bad("target_digest", "set", "must be zero for role target");
  }
  return absl::OkStatus();
}

// -0.0 equals 0.0 but encodes differently: 0.0 is the one spelling.
void NormalizeZero(double& value) {
  if (value == 0) value = 0;
}

absl::Status CheckRope(const Rope& rope) {
  if (!std::isfinite(rope.theta) || rope.theta < 0) {
    return Bad("rope.theta", absl::StrCat(rope.theta), "must be finite and at least 0");
  }
  PREFIXD_RETURN_IF_ERROR(CheckText("rope.scaling", rope.scaling, 0, kMaxScalingBytes));
  PREFIXD_RETURN_IF_ERROR(CheckRange("rope.scaling_params", rope.scaling_params.size(), 0,
                                     rope.scaling.empty() ? 0 : kMaxScalingParams));
  for (double param : rope.scaling_params) {
    if (!std::isfinite(param)) {
      return Bad("rope.scaling_params", absl::StrCat(param), "must be finite");
    }
  }
  PREFIXD_RETURN_IF_ERROR(CheckRange("rope.rotary_dims", rope.rotary_dims, 0, kMaxHeadDim));
  if (rope.rotary_dims % 2 != 0) {
    return Bad("rope.rotary_dims", absl::StrCat(rope.rotary_dims), "must be even");
  }
  if (rope.rotary_dims > 0 && rope.theta == 0) {
    return Bad("rope.theta", "0",
               absl::StrCat("must be above 0 with rotary_dims ", rope.rotary_dims));
  }
  return CheckRange("rope.pairing", static_cast<uint64_t>(rope.pairing), 1, 2);
}

// Checks that ranks are inside the plan, and that no shard has a name or a layer twice.
absl::Status CheckShards(const SpaceIdentity& identity) {
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> layers;
  std::set<std::tuple<uint32_t, uint32_t, std::string>> names;
  for (const LayerGroup& group : identity.groups) {
    const std::string of_layer = absl::StrCat("layer ", group.layers.front(), ": ");
    const auto check_rank = [&](const char* field, uint32_t rank, uint32_t ranks) {
      return rank < ranks ? absl::OkStatus()
                          : Bad((of_layer + field).c_str(), absl::StrCat(rank),
                                absl::StrCat("the plan has ", ranks));
    };
    PREFIXD_RETURN_IF_ERROR(check_rank("tensor_rank", group.tensor_rank, identity.tensor_parallel));
    PREFIXD_RETURN_IF_ERROR(
        check_rank("pipeline_rank", group.pipeline_rank, identity.pipeline_parallel));
    if (!names.emplace(group.tensor_rank, group.pipeline_rank, group.name).second) {
      return Bad((of_layer + "its group's name").c_str(), "used twice",
                 "must be unique in its shard");
    }
    for (uint32_t layer : group.layers) {
      if (!layers.emplace(group.tensor_rank, group.pipeline_rank, layer).second) {
        return Bad(absl::StrCat("layer ", layer).c_str(), "given twice",
                   absl::StrCat("must be in one group of shard (", group.tensor_rank, ", ",
                                group.pipeline_rank, ")"));
      }
    }
  }
  return absl::OkStatus();
}

// Checks that a shared layer is in no group and that the layer it reads has keys.
absl::Status CheckSharedLayers(const SpaceIdentity& identity) {
  std::set<uint32_t> stored, with_keys;
  for (const LayerGroup& group : identity.groups) {
    stored.insert(group.layers.begin(), group.layers.end());
    if (group.kind == LayerKind::kState) continue;
    with_keys.insert(group.layers.begin(), group.layers.end());
  }
  uint64_t least = 0;
  for (const SharedLayer& shared : identity.shared_layers) {
    PREFIXD_RETURN_IF_ERROR(
        CheckRange("shared_layers: layer", shared.layer, least, kMaxLayers - 1));
    if (stored.contains(shared.layer)) {
      return Bad("shared_layers: layer", absl::StrCat(shared.layer), "a layer of a group");
    }
    if (!with_keys.contains(shared.reads)) {
      return Bad("shared_layers: reads", absl::StrCat(shared.reads),
                 absl::StrCat("of layer ", shared.layer,
                              ", must be a layer of a full or a sliding group"));
    }
    least = uint64_t{shared.layer} + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status NormalizeAndValidate(SpaceIdentity* identity) {
  if (identity->block_tokens == 0) identity->block_tokens = kDefaultBlockTokens;
  NormalizeZero(identity->rope.theta);
  for (double& param : identity->rope.scaling_params) NormalizeZero(param);

  PREFIXD_RETURN_IF_ERROR(CheckModel(*identity));
  PREFIXD_RETURN_IF_ERROR(CheckRope(identity->rope));
  PREFIXD_RETURN_IF_ERROR(CheckRange("tensor_parallel", identity->tensor_parallel, 1, kMaxRanks));
  PREFIXD_RETURN_IF_ERROR(
      CheckRange("pipeline_parallel", identity->pipeline_parallel, 1, kMaxRanks));
  switch (identity->block_tokens) {
    case 16:
    case 32:
    case 64:
    case 128:
      break;
    default:
      return Bad("block_tokens", absl::StrCat(identity->block_tokens), "must be 16, 32, 64 or 128");
  }
  PREFIXD_RETURN_IF_ERROR(CheckRange("groups", identity->groups.size(), 1, kMaxGroups));
  for (const LayerGroup& group : identity->groups) {
    if (absl::Status status = Validate(group); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("space identity: ", std::string(status.message())));
    }
  }
  PREFIXD_RETURN_IF_ERROR(CheckShards(*identity));
  return CheckSharedLayers(*identity);
}

}  // namespace prefixd::block
