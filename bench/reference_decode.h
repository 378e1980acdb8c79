// The experiment that decode attention is held against: K in 8 bits, V in 4 bits (affine, groups of
// 64, f16 scales and biases), 128 channels, 4 query heads a kv head, on a page layout of its own,
// one kv head behind the other. AVX-512 VNNI only. Calls nothing of the project.
//
// Pure functions, thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prefixd::bench {

inline constexpr uint32_t kExperimentTokens = 64;  // of a page
inline constexpr uint32_t kExperimentDim = 128;
inline constexpr uint32_t kExperimentHeads = 4;  // query heads

// 64 tokens of one kv head: 208 bytes a token.
struct alignas(64) ExperimentPage {
  uint8_t key[2][32][2][16][4];  // [32 tokens][4 channels][16 of the tokens][token][channel]
  uint16_t key_scale[2][64], key_bias[2][64];  // [group][token]
  // [group][4 tokens][32 channels][16 channels x 4 tokens]: low nibble channel c, high c + 16.
  uint8_t value[2][16][2][64];
  uint16_t value_scale[2][64], value_bias[2][64];
};
static_assert(sizeof(ExperimentPage) == 208 * kExperimentTokens);

// Whether this CPU has the instructions.
bool CanRunExperiment();

// keys, values: [64][128]. Requires: CanRunExperiment().
void FillExperimentPage(const float* keys, const float* values, ExperimentPage* page);

// query: [4][128], multiplied with 1/sqrt(128) before. out: [4][128]. Fetches into L2 what is
// `ahead` pages ahead. Requires: CanRunExperiment(), pages > 0; `ahead` more pages may be touched
// by prefetches only.
void DecodeExperiment(const ExperimentPage* pages, size_t count, const float* query, size_t ahead,
                      float* out);

}  // namespace prefixd::bench
