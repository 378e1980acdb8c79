#include "wire/identity.h"

#include <string>

#include "wire/fields.h"

namespace prefixd::wire {
namespace {

using base::Digest256;

static_assert(v1::LayerKind_MAX == static_cast<int>(block::LayerKind::kState));
static_assert(v1::ValueSource_MAX == static_cast<int>(block::ValueSource::kKeyPrefix));
static_assert(v1::Codec_MAX == static_cast<int>(quant::Codec::kNvFp4));
static_assert(v1::Dtype_MAX == static_cast<int>(quant::Dtype::kBf16));
static_assert(v1::Rotation_MAX == static_cast<int>(quant::Rotation::kHadamard));
static_assert(v1::Layout_MAX == static_cast<int>(quant::Layout::kTransposed));

absl::Status ReadFormat(const std::string& where, const v1::TensorFormat& proto,
                        quant::TensorFormat* format) {
  PREFIXD_RETURN_IF_ERROR(
      ReadEnum(where + ".codec", proto.codec(), quant::Codec::kNvFp4, &format->codec));
  PREFIXD_RETURN_IF_ERROR(
      ReadEnum(where + ".dtype", proto.dtype(), quant::Dtype::kBf16, &format->dtype));
  PREFIXD_RETURN_IF_ERROR(ReadNarrow(where + ".bits", proto.bits(), &format->bits));
  PREFIXD_RETURN_IF_ERROR(
      ReadNarrow(where + ".group_size", proto.group_size(), &format->group_size));
  quant::Dtype scale_dtype{};  // every known format has one dtype
  PREFIXD_RETURN_IF_ERROR(
      ReadEnum(where + ".scale_dtype", proto.scale_dtype(), quant::Dtype::kBf16, &scale_dtype));
  if (scale_dtype != format->dtype) {
    return absl::InvalidArgumentError(absl::StrCat(where, ".scale_dtype is ", proto.scale_dtype(),
                                                   ", accepted: ", proto.dtype(), ", the dtype"));
  }
  PREFIXD_RETURN_IF_ERROR(ReadEnum(where + ".rotation", proto.rotation(),
                                   quant::Rotation::kHadamard, &format->rotation));
  return ReadEnum(where + ".layout", proto.layout(), quant::Layout::kTransposed, &format->layout);
}

absl::Status ReadGroup(const std::string& where, const v1::LayerGroup& proto,
                       block::LayerGroup* group) {
  group->name = proto.name();
  PREFIXD_RETURN_IF_ERROR(
      ReadEnum(where + ".kind", proto.kind(), block::LayerKind::kState, &group->kind));
  PREFIXD_RETURN_IF_ERROR(
      CheckCount(where + ".layers", static_cast<uint64_t>(proto.layers_size()), block::kMaxLayers));
  group->layers.assign(proto.layers().begin(), proto.layers().end());
  group->kv_heads = proto.kv_heads();
  group->key_dim = proto.key_dim();
  group->value_dim = proto.value_dim();
  PREFIXD_RETURN_IF_ERROR(ReadEnum(where + ".value_source", proto.value_source(),
                                   block::ValueSource::kKeyPrefix, &group->value_source));
  group->value_prefix_dim = proto.value_prefix_dim();
  group->tensor_rank = proto.tensor_rank();
  group->pipeline_rank = proto.pipeline_rank();
  group->window = proto.window();
  group->sink_tokens = proto.sink_tokens();
  group->state_bytes = proto.state_bytes();
  PREFIXD_RETURN_IF_ERROR(
      CheckCount(where + ".ladder", static_cast<uint64_t>(proto.ladder_size()), block::kMaxLadder));
  for (int i = 0; i < proto.ladder_size(); ++i) {
    const std::string rung = absl::StrCat(where, ".ladder[", i, "]");
    quant::KvFormat& format = group->ladder.emplace_back();
    PREFIXD_RETURN_IF_ERROR(ReadFormat(rung + ".key", proto.ladder(i).key(), &format.key));
    PREFIXD_RETURN_IF_ERROR(ReadFormat(rung + ".value", proto.ladder(i).value(), &format.value));
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const v1::Rope& proto, block::Rope* rope) {
  PREFIXD_RETURN_IF_ERROR(CheckCount("identity.rope.scaling_params",
                                     static_cast<uint64_t>(proto.scaling_params_size()),
                                     block::kMaxScalingParams));
  rope->theta = proto.theta();
  rope->scaling = proto.scaling();
  rope->scaling_params.assign(proto.scaling_params().begin(), proto.scaling_params().end());
  rope->rotary_dims = proto.rotary_dims();
  rope->pairing =
      proto.interleaved() ? block::RopePairing::kInterleaved : block::RopePairing::kHalves;
  rope->key_after_rope = !proto.key_before_rope();
  return absl::OkStatus();
}

void WriteFormat(const quant::TensorFormat& format, v1::TensorFormat* proto) {
  proto->set_codec(static_cast<v1::Codec>(format.codec));
  proto->set_dtype(static_cast<v1::Dtype>(format.dtype));
  proto->set_bits(format.bits);
  proto->set_group_size(format.group_size);
  proto->set_scale_dtype(static_cast<v1::Dtype>(format.dtype));
  proto->set_rotation(static_cast<v1::Rotation>(format.rotation));
  proto->set_layout(static_cast<v1::Layout>(format.layout));
}

void WriteGroup(const block::LayerGroup& group, v1::LayerGroup* proto) {
  proto->set_name(group.name);
  proto->set_kind(static_cast<v1::LayerKind>(group.kind));
  proto->mutable_layers()->Assign(group.layers.begin(), group.layers.end());
  proto->set_kv_heads(group.kv_heads);
  proto->set_key_dim(group.key_dim);
  proto->set_value_dim(group.value_dim);
  proto->set_value_source(static_cast<v1::ValueSource>(group.value_source));
  proto->set_value_prefix_dim(group.value_prefix_dim);
  proto->set_tensor_rank(group.tensor_rank);
  proto->set_pipeline_rank(group.pipeline_rank);
  proto->set_window(group.window);
  proto->set_sink_tokens(group.sink_tokens);
  proto->set_state_bytes(group.state_bytes);
  for (const quant::KvFormat& format : group.ladder) {
    v1::KvFormat* rung = proto->add_ladder();
    WriteFormat(format.key, rung->mutable_key());
    WriteFormat(format.value, rung->mutable_value());
  }
}

}  // namespace

absl::StatusOr<block::SpaceIdentity> FromProto(const v1::SpaceIdentity& proto) {
  block::SpaceIdentity identity;
  identity.model = proto.model();
  PREFIXD_RETURN_IF_ERROR(ReadDigest("identity.weights_digest", proto.weights_digest(), true,
                                     &identity.weights_digest));
  PREFIXD_RETURN_IF_ERROR(ReadDigest("identity.adapter_digest", proto.adapter_digest(), true,
                                     &identity.adapter_digest));
  PREFIXD_RETURN_IF_ERROR(ReadDigest("identity.tokenizer_digest", proto.tokenizer_digest(), true,
                                     &identity.tokenizer_digest));
  identity.role = proto.draft() ? block::Role::kDraft : block::Role::kTarget;
  PREFIXD_RETURN_IF_ERROR(
      ReadDigest("identity.target_digest", proto.target_digest(), true, &identity.target_digest));
  PREFIXD_RETURN_IF_ERROR(ReadRope(proto.rope(), &identity.rope));
  identity.tensor_parallel = proto.tensor_parallel() == 0 ? 1 : proto.tensor_parallel();
  identity.pipeline_parallel = proto.pipeline_parallel() == 0 ? 1 : proto.pipeline_parallel();
  identity.salt = proto.salt();
  identity.block_tokens = proto.block_tokens();
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("identity.groups", static_cast<uint64_t>(proto.groups_size()), block::kMaxGroups));
  for (int i = 0; i < proto.groups_size(); ++i) {
    PREFIXD_RETURN_IF_ERROR(ReadGroup(absl::StrCat("identity.groups[", i, "]"), proto.groups(i),
                                      &identity.groups.emplace_back()));
  }
  PREFIXD_RETURN_IF_ERROR(CheckCount("identity.shared_layers",
                                     static_cast<uint64_t>(proto.shared_layers_size()),
                                     block::kMaxLayers));
  for (const v1::SharedLayer& shared : proto.shared_layers()) {
    identity.shared_layers.push_back({.layer = shared.layer(), .reads = shared.reads()});
  }
  return identity;
}

v1::SpaceIdentity ToProto(const block::SpaceIdentity& identity) {
  v1::SpaceIdentity proto;
  proto.set_model(identity.model);
  proto.set_weights_digest(DigestBytes(identity.weights_digest));
  proto.set_adapter_digest(DigestBytes(identity.adapter_digest));
  proto.set_tokenizer_digest(DigestBytes(identity.tokenizer_digest));
  proto.set_draft(identity.role == block::Role::kDraft);
  proto.set_target_digest(DigestBytes(identity.target_digest));
  v1::Rope* rope = proto.mutable_rope();
  rope->set_theta(identity.rope.theta);
  rope->set_scaling(identity.rope.scaling);
  rope->mutable_scaling_params()->Assign(identity.rope.scaling_params.begin(),
                                         identity.rope.scaling_params.end());
  rope->set_rotary_dims(identity.rope.rotary_dims);
  rope->set_interleaved(identity.rope.pairing == block::RopePairing::kInterleaved);
  rope->set_key_before_rope(!identity.rope.key_after_rope);
  proto.set_tensor_parallel(identity.tensor_parallel);
  proto.set_pipeline_parallel(identity.pipeline_parallel);
  proto.set_salt(identity.salt);
  proto.set_block_tokens(identity.block_tokens);
  for (const block::LayerGroup& group : identity.groups) WriteGroup(group, proto.add_groups());
  for (const block::SharedLayer& shared : identity.shared_layers) {
    v1::SharedLayer* to = proto.add_shared_layers();
    to->set_layer(shared.layer);
    to->set_reads(shared.reads);
  }
  return proto;
}

}  // namespace prefixd::wire
