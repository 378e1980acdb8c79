#include "convert.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "block/names.h"
#include "block/split_layers.h"

namespace prefixd::client {
namespace {

StatusCode ToPublic(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return StatusCode::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return StatusCode::kInvalidArgument;
    case absl::StatusCode::kNotFound:
      return StatusCode::kNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return StatusCode::kUnavailable;
    case absl::StatusCode::kDeadlineExceeded:
      return StatusCode::kDeadline;
    case absl::StatusCode::kResourceExhausted:
      return StatusCode::kExhausted;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
      return StatusCode::kFailedPrecondition;
    default:
      return StatusCode::kInternal;
  }
}

// Returns a layer as a group of its own, before SplitLayers names it and puts equal ones together.
absl::StatusOr<block::LayerGroup> GroupOfLayer(const SpaceSpec& spec, uint32_t layer) {
  const LayerSpec& from = spec.layers[layer];
  block::LayerGroup group;
  group.kind = from.kind;
  group.window = from.window;
  group.sink_tokens = from.sink_tokens;
  group.state_bytes = from.state_bytes;
  group.kv_heads = from.kv_heads;
  group.key_dim = from.key_dim;
  group.value_dim = from.value_dim;
  group.value_source = from.values;
  if (from.values == ValueSource::kKeyPrefix) group.value_prefix_dim = from.value_dim;
  group.tensor_rank = spec.tensor_rank;
  group.pipeline_rank = spec.pipeline_rank;
  group.ladder = from.formats;
  block::LayerGroup named = group;
  named.name = absl::StrCat("of layer ", layer);
  named.layers = {layer};
  PREFIXD_RETURN_IF_ERROR(block::Validate(named));
  return group;
}

absl::StatusOr<block::SharedLayer> SharedLayer(const SpaceSpec& spec, uint32_t layer) {
  const auto reads = static_cast<uint32_t>(spec.layers[layer].reads_layer);
  const auto bad = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("space: layer ", layer, " reads layer ", reads, ", ", why));
  };
  if (reads >= spec.layers.size()) return bad("which is none");
  const LayerSpec& owner = spec.layers[reads];
  if (owner.reads_layer >= 0) return bad("which has no cache of its own");
  if (owner.kind == LayerKind::kState) return bad("which keeps a state");
  const LayerSpec nothing{.reads_layer = spec.layers[layer].reads_layer};
  const LayerSpec& said = spec.layers[layer];
  if (said.kv_heads != nothing.kv_heads || said.key_dim != 0 || said.value_dim != 0 ||
      !said.formats.empty() || said.kind != nothing.kind || said.window != 0 ||
      said.sink_tokens != 0 || said.state_bytes != 0 || said.values != nothing.values) {
    return bad("and is described itself: what it reads has that layer's shape");
  }
  return block::SharedLayer{.layer = layer, .reads = reads};
}

}  // namespace

Status ToPublic(const absl::Status& status) {
  return {.code = ToPublic(status.code()), .message = std::string(status.message())};
}

MatchInfo ToPublic(const block::MatchAnswer& match) {
  MatchInfo info;
  info.kind = static_cast<MatchKind>(match.kind);
  info.matched_tokens = match.matched_tokens;
  info.restorable_tokens = match.restorable_tokens;
  info.pending_tokens = match.pending_tokens;
  info.ram_bytes = match.ram_bytes;
  info.ssd_bytes = match.ssd_bytes;
  info.remote_bytes = match.remote_bytes;
  info.estimated_load_us = match.load_us;
  for (const block::Shortening& shortening : match.shortened_by) {
    if (!info.why_shorter.empty()) info.why_shorter += ", ";
    info.why_shorter += absl::StrCat(block::NameOf(shortening.reason), " ", shortening.tokens_lost);
  }
  return info;
}

std::vector<block::ContentKey> FromPublic(std::span<const Content> content) {
  std::vector<block::ContentKey> keys;
  for (const Content& item : content) {
    keys.push_back({.start = item.start,
                    .item_offset = item.item_offset,
                    .length = item.length,
                    .digest = item.digest});
  }
  return keys;
}

absl::StatusOr<block::SpaceIdentity> IdentityOf(const SpaceSpec& spec) {
  block::SpaceIdentity identity;
  identity.model = spec.model;
  identity.weights_digest = spec.weights_digest;
  identity.adapter_digest = spec.adapter_digest;
  identity.tokenizer_digest = spec.tokenizer_digest;
  identity.role = spec.draft ? block::Role::kDraft : block::Role::kTarget;
  identity.target_digest = spec.target_digest;
  identity.rope = {.theta = spec.rope.theta,
                   .scaling = spec.rope.scaling,
                   .scaling_params = spec.rope.scaling_params,
                   .rotary_dims = spec.rope.rotary_dim,
                   .pairing = spec.rope.interleaved ? block::RopePairing::kInterleaved
                                                    : block::RopePairing::kHalves,
                   .key_after_rope = !spec.rope.key_before_rope};
  identity.tensor_parallel = spec.tensor_parallel;
  identity.pipeline_parallel = spec.pipeline_parallel;
  identity.salt = spec.salt;
  identity.block_tokens = spec.block_tokens;
  if (spec.layers.size() > block::kMaxLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("space: ", spec.layers.size(), " layers, at most ", block::kMaxLayers));
  }
  std::vector<block::LayerGroup> layers;
  std::vector<uint32_t> indexes;  // of `layers` in the model
  for (uint32_t layer = 0; layer < spec.layers.size(); ++layer) {
    if (spec.layers[layer].reads_layer >= 0) {
      PREFIXD_ASSIGN_OR_RETURN(identity.shared_layers.emplace_back(), SharedLayer(spec, layer));
      continue;
    }
    PREFIXD_ASSIGN_OR_RETURN(layers.emplace_back(), GroupOfLayer(spec, layer));
    indexes.push_back(layer);
  }
  // The split is part of the identity, so it must not depend on a default that the daemon fills in.
  const uint32_t block_tokens = spec.block_tokens ? spec.block_tokens : block::kDefaultBlockTokens;
  if (!layers.empty()) identity.groups = block::SplitLayers(layers, block_tokens);
  for (block::LayerGroup& group : identity.groups) {
    for (uint32_t& layer : group.layers) layer = indexes[layer];
  }
  block::SpaceIdentity checked = identity;
  PREFIXD_RETURN_IF_ERROR(block::NormalizeAndValidate(&checked));
  return identity;
}

}  // namespace prefixd::client
