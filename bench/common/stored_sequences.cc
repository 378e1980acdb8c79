#include "bench/common/stored_sequences.h"

#include "bench/common/mix.h"

namespace prefixd::bench {
SpaceSpec SpecOf(const Geometry& geometry) {
  SpaceSpec spec;
  spec.model = geometry.model;
  spec.weights_digest[0] = std::byte{1};
  spec.layers.assign(geometry.layers, {.kv_heads = geometry.kv_heads,
                                       .key_dim = geometry.dim,
                                       .value_dim = geometry.dim,
                                       .formats = {MlxAffine(8, 64, Dtype::kF16)}});
  return spec;
}

std::vector<uint32_t> TokensOf(const SequenceName& name) {
  std::vector<uint32_t> tokens(name.tokens);
  for (uint32_t i = 0; i < name.tokens; ++i) {
    tokens[i] = static_cast<uint32_t>(Mix(name.seed * 1'000'003 + i) >> 40);
  }
  return tokens;
}

}  // namespace prefixd::bench
