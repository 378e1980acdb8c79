// Models by their shape alone, and the tokens of sequences that share nothing.
//
// Plain values.
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

}  // namespace prefixd::bench
