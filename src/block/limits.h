// Limits of requests, which the wire checks and the cache keeps.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace prefixd::block {

inline constexpr uint32_t kMaxTokens = 1u << 21;               // of one sequence
inline constexpr uint32_t kMaxItems = 16;                      // of one Match, Acquire or Prefetch
inline constexpr uint32_t kMaxEnds = 4096;                     // of one plan or Commit
inline constexpr uint64_t kMaxPieceBytes = uint64_t{1} << 20;  // of a page in one message
inline constexpr std::chrono::milliseconds kMaxPinTtl{std::chrono::hours(24 * 365 * 100)};
inline constexpr size_t kMaxNotShared = 16;  // models that one session says it does not share
inline constexpr size_t kSessionKeyBytes = 16;

}  // namespace prefixd::block
