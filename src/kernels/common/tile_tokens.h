// Tiles of 64 tokens, and what a row of a call sees of them. Internal to kernels/.
//
// Pure functions, thread-safe.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/attention.h"

namespace prefixd::kernels {

inline constexpr uint32_t kTileTokens = 64;
// A set of tokens of a tile: bit t is token t.
using TileTokens = uint64_t;
inline constexpr TileTokens kAllTokens = ~TileTokens{0};

inline constexpr float kLog2E = 1.44269504f;  // weights are powers of 2

// Returns the factor of queries: scores to be capped count in caps first.
inline float QueryScale(const AttentionShape& shape) {
  return shape.soft_cap == 0 ? shape.scale * kLog2E : shape.scale / shape.soft_cap;
}

inline TileTokens FirstTokens(uint64_t count) {
  return count >= kTileTokens ? kAllTokens : (TileTokens{1} << count) - 1;
}
// Returns the tokens of the tile at `begin` that stand before `position`.
inline TileTokens TokensBelow(uint64_t begin, uint64_t position) {
  return position <= begin ? 0 : FirstTokens(position - begin);
}

// Returns the first position that the window lets the row at `position` see.
inline uint64_t WindowBegin(const AttentionShape& shape, uint64_t position) {
  return shape.window == 0 || position < shape.window ? 0 : position + 1 - shape.window;
}
// Returns the tokens of the tile at `begin` that any row at positions `first` ... `last` sees.
inline TileTokens SeenBetween(const AttentionShape& shape, uint64_t begin, uint64_t first,
                              uint64_t last) {
  const TileTokens seen = TokensBelow(begin, last + 1);
  if (shape.window == 0) return seen;
  return seen &
         (~TokensBelow(begin, WindowBegin(shape, first)) | TokensBelow(begin, shape.sink_tokens));
}

// Consecutive tokens of a tile; `count` is 0 if there are none.
struct TokenRun {
  uint32_t first = 0;
  uint32_t count = 0;
};
// Returns the first unbroken run of `tokens` at or after `from`.
inline TokenRun RunFrom(TileTokens tokens, uint32_t from) {
  if (from >= kTileTokens || tokens >> from == 0) return {kTileTokens, 0};
  const uint32_t first = from + static_cast<uint32_t>(std::countr_zero(tokens >> from));
  return {first, static_cast<uint32_t>(std::countr_one(tokens >> first))};
}

}  // namespace prefixd::kernels
