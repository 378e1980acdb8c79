#include "client/cli/identity_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/bytes.h"
#include "base/status.h"
#include "client/cli/names.h"
#include "quant/format.h"
#include "wire/admin.h"
#include "wire/identity.h"

namespace prefixd::cli {
namespace {

using Json = nlohmann::json;

absl::Status Bad(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("identity: ", what));
}

// One JSON object. Each known field is asked for once; CheckKnown() refuses the others as typing
// errors.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  template <typename T>
  absl::Status Read(const char* name, T* to) {
    known_.insert(name);
    if (!json_.contains(name)) return absl::OkStatus();
    try {
      json_.at(name).get_to(*to);
    } catch (const Json::exception&) {
      return Bad(absl::StrCat(where_, name, " is ", json_.at(name).dump()));
    }
    return absl::OkStatus();
  }
  absl::Status ReadDigest(const char* name, Digest* to) {
    std::string hex;
    PREFIXD_RETURN_IF_ERROR(Read(name, &hex));
    if (hex.empty() || base::FromHex(hex, *to)) return absl::OkStatus();
    return Bad(absl::StrCat(where_, name, " is \"", hex, "\", must be 64 hexadecimal digits"));
  }
  const Json* Child(const char* name) {
    known_.insert(name);
    return json_.contains(name) ? &json_.at(name) : nullptr;
  }
  absl::Status CheckKnown() const {
    if (!json_.is_object()) return Bad(absl::StrCat(where_, "no JSON object"));
    for (const auto& [name, value] : json_.items()) {
      if (!known_.contains(name)) return Bad(absl::StrCat(where_, name, " is not a field of it"));
    }
    return absl::OkStatus();
  }

 private:
  const Json& json_;
  const std::string where_;
  std::set<std::string> known_;
};

absl::Status ReadRope(const Json& json, RopeSpec* rope) {
  Fields fields(json, "rope.");
  PREFIXD_RETURN_IF_ERROR(fields.Read("theta", &rope->theta));
  PREFIXD_RETURN_IF_ERROR(fields.Read("scaling", &rope->scaling));
  PREFIXD_RETURN_IF_ERROR(fields.Read("scaling_params", &rope->scaling_params));
  PREFIXD_RETURN_IF_ERROR(fields.Read("rotary_dim", &rope->rotary_dim));
  PREFIXD_RETURN_IF_ERROR(fields.Read("interleaved", &rope->interleaved));
  PREFIXD_RETURN_IF_ERROR(fields.Read("key_before_rope", &rope->key_before_rope));
  return fields.CheckKnown();
}

constexpr std::pair<LayerKind, const char*> kKinds[] = {
    {LayerKind::kFull, "full"}, {LayerKind::kSliding, "sliding"}, {LayerKind::kState, "state"}};

absl::Status ReadKind(Fields& fields, LayerSpec* layer) {
  std::string kind = "full";
  PREFIXD_RETURN_IF_ERROR(fields.Read("kind", &kind));
  PREFIXD_RETURN_IF_ERROR(fields.Read("window", &layer->window));
  PREFIXD_RETURN_IF_ERROR(fields.Read("sink_tokens", &layer->sink_tokens));
  PREFIXD_RETURN_IF_ERROR(fields.Read("state_bytes", &layer->state_bytes));
  for (const auto& [value, name] : kKinds) {
    layer->kind = value;
    if (kind == name) return absl::OkStatus();
  }
  return Bad(absl::StrCat("kind is \"", kind, "\", accepted: full, sliding, state"));
}

absl::Status ReadLayers(const Json& json, SpaceSpec* spec) {
  if (!json.is_array()) return Bad("layers is not a list");
  for (const Json& entry : json) {
    Fields fields(entry, absl::StrCat("layers[", spec->layers.size(), "]."));
    LayerSpec layer;
    uint32_t count = 1;
    std::vector<std::string> formats;
    PREFIXD_RETURN_IF_ERROR(fields.Read("count", &count));
    PREFIXD_RETURN_IF_ERROR(ReadKind(fields, &layer));
    PREFIXD_RETURN_IF_ERROR(fields.Read("kv_heads", &layer.kv_heads));
    PREFIXD_RETURN_IF_ERROR(fields.Read("key_dim", &layer.key_dim));
    PREFIXD_RETURN_IF_ERROR(fields.Read("value_dim", &layer.value_dim));
    PREFIXD_RETURN_IF_ERROR(fields.Read("formats", &formats));
    PREFIXD_RETURN_IF_ERROR(fields.CheckKnown());
    for (const std::string& format : formats) {
      PREFIXD_ASSIGN_OR_RETURN(layer.formats.emplace_back(), ParseKvFormat(format));
    }
    if (count > block::kMaxLayers || spec->layers.size() + count > block::kMaxLayers) {
      return Bad(absl::StrCat("more than ", block::kMaxLayers, " layers"));
    }
    spec->layers.insert(spec->layers.end(), count, layer);
  }
  return absl::OkStatus();
}

Json JsonOf(const LayerSpec& layer) {
  if (layer.kind == LayerKind::kState) {
    return {{"kind", "state"}, {"state_bytes", layer.state_bytes}};
  }
  Json json = {{"kv_heads", layer.kv_heads},
               {"key_dim", layer.key_dim},
               {"value_dim", layer.value_dim},
               {"formats", Json::array()}};
  if (layer.kind == LayerKind::kSliding) {
    json["kind"] = "sliding";
    json["window"] = layer.window;
    json["sink_tokens"] = layer.sink_tokens;
  }
  for (const KvFormat& format : layer.formats) json["formats"].push_back(quant::ToString(format));
  return json;
}

Digest DigestOf(const base::Digest256& digest) {
  Digest copy;
  std::memcpy(copy.data(), digest.data(), copy.size());
  return copy;
}

absl::Status CheckCarried(const block::SpaceIdentity& identity) {
  if (identity.role != block::Role::kTarget || identity.tensor_parallel != 1 ||
      identity.pipeline_parallel != 1) {
    return Bad("drafts, and spaces of several ranks, are not imported or exported");
  }
  if (!identity.shared_layers.empty()) {
    const block::SharedLayer& shared = identity.shared_layers.front();
    return Bad(absl::StrCat("layer ", shared.layer, " reads the cache of layer ", shared.reads,
                            ": such spaces are not imported or exported"));
  }
  for (const block::LayerGroup& group : identity.groups) {
    if (!block::StoresValues(group)) {
      return Bad(absl::StrCat("group ", group.name,
                              " has no values of its own: such spaces are not imported or "
                              "exported"));
    }
  }
  return absl::OkStatus();
}

// Sets `salt` to the field "salt" if the identity has it, or to none if "salt_digest" is "".
// Otherwise sets it to `given`, which must fit "salt_digest" if there is one.
absl::Status ReadSalt(const Json& json, const std::string& given, Fields* fields,
                      std::string* salt) {
  std::string hex;
  PREFIXD_RETURN_IF_ERROR(fields->Read("salt", salt));
  PREFIXD_RETURN_IF_ERROR(fields->Read("salt_digest", &hex));
  if (json.contains("salt")) return absl::OkStatus();
  if (json.contains("salt_digest") && hex.empty()) return absl::OkStatus();
  *salt = given;
  if (hex.empty()) return absl::OkStatus();
  std::array<std::byte, wire::kSaltDigestBytes> digest{};
  if (hex.size() != 2 * digest.size() || !base::FromHex(hex, digest)) {
    return Bad(absl::StrCat("salt_digest is \"", hex, "\", must be ", 2 * digest.size(),
                            " hexadecimal digits"));
  }
  return CheckSalt("the identity", std::string(base::AsText(digest)), given);
}

}  // namespace

absl::StatusOr<KvFormat> ParseKvFormat(const std::string& text) {
  const size_t plus = text.find('+');
  PREFIXD_ASSIGN_OR_RETURN(const TensorFormat key, quant::ParseTensorFormat(text.substr(0, plus)));
  TensorFormat value = key;
  if (plus != std::string::npos) {
    PREFIXD_ASSIGN_OR_RETURN(value, quant::ParseTensorFormat(text.substr(plus + 1)));
  }
  return KvFormat{.key = key, .value = value};
}

absl::Status CheckSalt(const std::string& what, const std::string& digest,
                       const std::string& salt) {
  if (digest.empty() || wire::SaltDigest(salt) == digest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " has a salt, of digest ", HexId(digest), ": ",
                   salt.empty() ? "give it by --salt or $PREFIXD_SALT, prefixd shows none"
                                : "the one that --salt or $PREFIXD_SALT gives is another"));
}

absl::StatusOr<SpaceSpec> ReadIdentity(const std::string& text, const std::string& salt) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Bad("is no JSON object");
  Fields fields(json, "");
  SpaceSpec spec;
  PREFIXD_RETURN_IF_ERROR(fields.Read("model", &spec.model));
  PREFIXD_RETURN_IF_ERROR(fields.ReadDigest("weights_digest", &spec.weights_digest));
  PREFIXD_RETURN_IF_ERROR(fields.ReadDigest("adapter_digest", &spec.adapter_digest));
  PREFIXD_RETURN_IF_ERROR(fields.ReadDigest("tokenizer_digest", &spec.tokenizer_digest));
  PREFIXD_RETURN_IF_ERROR(ReadSalt(json, salt, &fields, &spec.salt));
  PREFIXD_RETURN_IF_ERROR(fields.Read("block_tokens", &spec.block_tokens));
  if (const Json* rope = fields.Child("rope")) PREFIXD_RETURN_IF_ERROR(ReadRope(*rope, &spec.rope));
  if (const Json* layers = fields.Child("layers")) {
    PREFIXD_RETURN_IF_ERROR(ReadLayers(*layers, &spec));
  }
  PREFIXD_RETURN_IF_ERROR(fields.CheckKnown());
  if (spec.model.empty()) return Bad("has no model");
  return spec;
}

std::string WriteIdentity(const SpaceSpec& spec) {
  const auto hex = [](const Digest& digest) { return base::ToHex(digest); };
  Json json = {{"model", spec.model},
               {"weights_digest", hex(spec.weights_digest)},
               {"adapter_digest", hex(spec.adapter_digest)},
               {"tokenizer_digest", hex(spec.tokenizer_digest)},
               {"salt_digest", HexId(wire::SaltDigest(spec.salt))},
               {"block_tokens", spec.block_tokens},
               {"rope",
                {{"theta", spec.rope.theta},
                 {"scaling", spec.rope.scaling},
                 {"scaling_params", spec.rope.scaling_params},
                 {"rotary_dim", spec.rope.rotary_dim},
                 {"interleaved", spec.rope.interleaved},
                 {"key_before_rope", spec.rope.key_before_rope}}},
               {"layers", Json::array()}};
  for (const LayerSpec& layer : spec.layers) json["layers"].push_back(JsonOf(layer));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<SpaceSpec> SpecOf(const v1::SpaceIdentity& proto) {
  PREFIXD_ASSIGN_OR_RETURN(const block::SpaceIdentity identity, wire::FromProto(proto));
  PREFIXD_RETURN_IF_ERROR(CheckCarried(identity));
  SpaceSpec spec;
  spec.model = identity.model;
  spec.weights_digest = DigestOf(identity.weights_digest);
  spec.adapter_digest = DigestOf(identity.adapter_digest);
  spec.tokenizer_digest = DigestOf(identity.tokenizer_digest);
  spec.rope.theta = identity.rope.theta;
  spec.rope.scaling = identity.rope.scaling;
  spec.rope.scaling_params = identity.rope.scaling_params;
  spec.rope.rotary_dim = identity.rope.rotary_dims;
  spec.rope.interleaved = identity.rope.pairing == block::RopePairing::kInterleaved;
  spec.rope.key_before_rope = !identity.rope.key_after_rope;
  spec.salt = identity.salt;
  spec.block_tokens = identity.block_tokens;
  for (const block::LayerGroup& group : identity.groups) {
    LayerSpec layer;
    layer.kind = group.kind;
    layer.window = group.window;
    layer.sink_tokens = group.sink_tokens;
    if (!group.layers.empty()) layer.state_bytes = group.state_bytes / group.layers.size();
    layer.kv_heads = group.kv_heads;
    layer.key_dim = group.key_dim;
    layer.value_dim = group.value_dim;
    layer.formats = group.ladder;
    for (const uint32_t index : group.layers) {
      if (spec.layers.size() <= index) spec.layers.resize(index + 1);
      spec.layers[index] = layer;
    }
  }
  const bool holes = std::any_of(
      spec.layers.begin(), spec.layers.end(),
      [](const LayerSpec& layer) { return layer.formats.empty() && layer.state_bytes == 0; });
  if (holes) return Bad("some layers are missing");
  return spec;
}

}  // namespace prefixd::cli
