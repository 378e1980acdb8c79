// What kv-cache is asked for: the shape of a whole model's KV cache, by the seed's flags.
#pragma once
#include <cstdint>
#include <string>

namespace prefixd::bench {

struct KvCacheOptions {
  uint32_t layers = 32;
  uint32_t seq_len = 512;
  uint32_t heads = 32;
  uint32_t head_dim = 128;
  uint32_t group_size = 64;         // of the MLX formats; ggml's are always 32
  std::string rotation = "none";    // "hadamard": what it is worth, beside the table
  uint64_t memory_limit_bytes = 0;  // 0: 80 % of what is available; beyond it no step goes
};

}  // namespace prefixd::bench
