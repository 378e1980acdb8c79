// Sequences that a client stores and later recognizes byte for byte: K and V are places in one
// random pattern that follow from the sequence, the layer and the tensor.
//
// One thread.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "prefixd/client.h"

namespace prefixd::bench {

// Every layer in 8-bit MLX format of group 64.
struct Geometry {
  std::string model;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t dim = 0;
};
SpaceSpec SpecOf(const Geometry& geometry);

struct SequenceName {
  uint64_t seed = 0;
  uint32_t tokens = 0;
};
std::vector<uint32_t> TokensOf(const SequenceName& name);  // of different seeds: share nothing

class SequencePattern {
 public:
  SequencePattern(const Geometry& geometry, uint32_t max_tokens);

  // Fills and commits the whole sequence. Requires: nothing of it is cached.
  Status Store(const SequenceName& name, Sequence* sequence) const;
  // Whether tokens [0, tokens) are what Store() stored, in every layer.
  bool Matches(const SequenceName& name, uint32_t tokens, const Sequence& sequence) const;

 private:
  // Codes, scales and biases of K (tensor 0) or V (tensor 1) of a layer, [kv_heads][tokens][...].
  PackedView At(const SequenceName& name, uint32_t layer, uint32_t tensor) const;

  const Geometry geometry_;
  const RowBytes row_;
  std::vector<std::byte> pattern_;
};

}  // namespace prefixd::bench
