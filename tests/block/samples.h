// Identities and groups that several tests of this room build on.
#pragma once
#include <string>
#include <vector>

#include "block/space_identity.h"
#include "block/split_layers.h"

namespace prefixd::block {

inline quant::TensorFormat Mlx(uint8_t bits, uint16_t group_size = 64,
                               quant::Dtype dtype = quant::Dtype::kF16) {
  return quant::MlxAffineFormat(bits, group_size, dtype);
}

inline base::Digest256 DigestOf(uint8_t fill) {
  base::Digest256 digest;
  digest.fill(static_cast<std::byte>(fill));
  return digest;
}

struct Geometry {
  uint32_t layers, kv_heads, head_dim;
};
inline constexpr Geometry kQwen06B = {28, 8, 128};
inline constexpr Geometry kLlama8B = {32, 8, 128};

inline LayerGroup FullLayer(const Geometry& geometry, const quant::KvFormat& format) {
  LayerGroup layer;
  layer.kv_heads = geometry.kv_heads;
  layer.key_dim = geometry.head_dim;
  layer.value_dim = geometry.head_dim;
  layer.ladder = {format};
  return layer;
}

inline SpaceIdentity ModelOf(const Geometry& geometry, const quant::KvFormat& format) {
  SpaceIdentity identity;
  identity.model = "model";
  identity.groups = SplitLayers(
      std::vector<LayerGroup>(geometry.layers, FullLayer(geometry, format)), kDefaultBlockTokens);
  return identity;
}

// Every kind, every field that can be off its default is. golden_hashes.py builds the same one.
inline SpaceIdentity Hybrid() {
  SpaceIdentity identity;
  identity.model = "demo/hybrid";
  identity.weights_digest = DigestOf(0x11);
  identity.adapter_digest = DigestOf(0x22);
  identity.tokenizer_digest = DigestOf(0x33);
  identity.role = Role::kDraft;
  identity.target_digest = DigestOf(0x44);
  identity.rope = {.theta = 500000,
                   .scaling = "llama3",
                   .scaling_params = {8, 1, 4, 8192},
                   .rotary_dims = 128,
                   .pairing = RopePairing::kHalves,
                   .key_after_rope = true};
  identity.tensor_parallel = 2;
  identity.tenant = "local";
  identity.salt = "alice";
  identity.block_tokens = 64;

  LayerGroup full;
  full.name = "full.0";
  full.layers = {0, 2};
  full.kv_heads = 2;
  full.key_dim = 128;
  full.value_dim = 64;
  full.ladder = {{Mlx(8), Mlx(8)}, {Mlx(8), Mlx(4)}};
  LayerGroup sliding = full;
  sliding.name = "sliding.0";
  sliding.kind = LayerKind::kSliding;
  sliding.layers = {1};
  sliding.value_dim = 128;
  sliding.window = 512;
  sliding.sink_tokens = 4;
  sliding.ladder = {{Mlx(8), Mlx(8)}};
  LayerGroup state;
  state.name = "state.0";
  state.kind = LayerKind::kState;
  state.layers = {3};
  state.state_bytes = 4096;
  identity.groups = {full, sliding, state};
  return identity;
}

}  // namespace prefixd::block
