#include "client/worker/cache_space.h"

#include <cstddef>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "absl/status/status.h"

#include "base/checksum.h"
#include "base/status.h"
#include "client/worker/gated_delta.h"
#include "client/worker/synthetic.h"

namespace prefixd::worker {
namespace {

Digest DigestText(const std::string& text) { return base::Sha256(std::as_bytes(std::span(text))); }

absl::StatusOr<Digest> Checked(const Result<Digest>& digest, const char* what) {
  if (digest.ok()) return digest.value();
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", digest.status.message));
}

absl::StatusOr<Digest> TokenizerDigest(const std::string& dir, const ModelConfig& config) {
  if (config.byte_level()) return DigestText("prefixd: token id = byte value");
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::filesystem::path path = std::filesystem::path(dir) / name;
    std::error_code error;
    if (std::filesystem::exists(path, error)) {
      return Checked(DigestFile(path.string()), "tokenizer digest");
    }
  }
  return DigestText("prefixd: token ids without a tokenizer");
}

// Returns everything that turns keys, so that no worker reads keys that were turned in another way.
RopeSpec RopeOf(const ModelConfig& config) {
  RopeSpec rope;
  rope.theta = config.rope_theta;
  rope.rotary_dim = config.rotary_dim > 0 ? config.rotary_dim : config.head_dim;
  const RopeScaling& scaling = config.rope_scaling;
  switch (scaling.type) {
    case RopeScaling::Type::kNone:
      break;
    case RopeScaling::Type::kLinear:
      rope.scaling = "linear";
      rope.scaling_params = {scaling.factor};
      break;
    case RopeScaling::Type::kLlama3:
      rope.scaling = "llama3";
      rope.scaling_params = {scaling.factor, scaling.low_frequency_factor,
                             scaling.high_frequency_factor,
                             static_cast<double>(scaling.original_tokens)};
      break;
  }
  if (config.local_rope_theta > 0) {
    rope.scaling += rope.scaling.empty() ? "local" : "+local";
    rope.scaling_params.push_back(config.local_rope_theta);
  }
  return rope;
}

LayerSpec LayerOf(const ModelConfig& config, const LayerShape& shape,
                  const std::vector<KvFormat>& formats) {
  if (shape.type == LayerType::kGatedDelta) {
    return {.kind = LayerKind::kState,
            .state_bytes = DeltaStateFloats(config.delta) * sizeof(float)};
  }
  LayerSpec layer{.kv_heads = config.kv_heads,
                  .key_dim = config.head_dim,
                  .value_dim = config.head_dim,
                  .formats = formats};
  if (shape.type == LayerType::kSliding) {
    layer.kind = LayerKind::kSliding;
    layer.window = shape.window;
    layer.sink_tokens = shape.sink_tokens;
  }
  return layer;
}

// Returns a client that never finds a daemon: nothing can listen below a device.
Client PrivateClient(const std::string& name) {
  return Client({.address = "unix:///dev/null/none",
                 .name = name,
                 .connect_deadline = std::chrono::milliseconds(0)});
}

}  // namespace

absl::StatusOr<ModelIdentity> IdentifyCheckpoint(const std::string& dir,
                                                 const ModelConfig& config) {
  ModelIdentity identity;
  PREFIXD_ASSIGN_OR_RETURN(identity.weights_digest,
                           Checked(DigestCheckpoint(dir), "weights digest"));
  PREFIXD_ASSIGN_OR_RETURN(identity.tokenizer_digest, TokenizerDigest(dir, config));
  return identity;
}

ModelIdentity IdentifySynthetic(const ModelConfig& config) {
  return {.weights_digest = SyntheticDigest(config),
          .tokenizer_digest = DigestText("prefixd: token ids without a tokenizer")};
}

SpaceSpec MakeSpaceSpec(const ModelConfig& config, const ModelIdentity& identity,
                        const std::vector<KvFormat>& formats) {
  SpaceSpec spec;
  spec.model = config.name;
  spec.weights_digest = identity.weights_digest;
  spec.tokenizer_digest = identity.tokenizer_digest;
  spec.rope = RopeOf(config);
  for (uint32_t layer = 0; layer < config.layers; ++layer) {
    spec.layers.push_back(LayerOf(config, config.layer(layer), formats));
  }
  return spec;
}

absl::StatusOr<CacheSpace> OpenCacheSpace(const Options& options, const SpaceSpec& spec) {
  const bool wants_server = options.server != "none";
  Client client = wants_server ? Client({.address = options.server,
                                         .name = options.name,
                                         .use_arena = options.use_arena,
                                         .staging_bytes = options.staging_bytes})
                               : PrivateClient(options.name);
  std::string why_alone = wants_server ? "" : "--server none";
  Result<Space> space = client.OpenSpace(spec);
  if (wants_server && !space.ok()) {
    why_alone = space.status.message;
    client = PrivateClient(options.name);
    space = client.OpenSpace(spec);
  } else if (wants_server && !client.attached()) {
    why_alone = absl::StrCat("no prefixd at ", options.server, " yet");
  }
  if (!space.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("kv cache: ", space.status.message));
  }
  return CacheSpace{std::move(client), std::move(space.value()), std::move(why_alone)};
}

}  // namespace prefixd::worker
