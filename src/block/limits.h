// Limits of requests, which the wire checks and the cache keeps.
#pragma once
#include <cstdint>

namespace prefixd::block {

inline constexpr uint32_t kMaxTokens = 1u << 21;               // of one sequence
inline constexpr uint32_t kMaxItems = 16;                      // of one Match, Acquire or Prefetch
inline constexpr uint32_t kMaxEnds = 4096;                     // of one plan or Commit
inline constexpr uint64_t kMaxPieceBytes = uint64_t{1} << 20;  // of a page in one message

}  // namespace prefixd::block
