// The limits of the wire, all readable in Admin.GetConfig. A limit that a value type has itself
// (groups, ladder, layers) stands with that type, and one that the cache keeps in block/limits.h.
#pragma once
#include <algorithm>
#include <cstdint>

#include "block/limits.h"

namespace prefixd::wire {

inline constexpr uint32_t kProtocol = 1;
using block::kMaxEnds;
using block::kMaxItems;
using block::kMaxPieceBytes;
using block::kMaxTokens;
using block::kSessionKeyBytes;
inline constexpr uint64_t kMaxMessageBytes = uint64_t{2} << 20;  // without tokens
// The most bytes of a message with tokens (Match, Acquire, Prefetch, Reserve, Pin, Unpin): one
// sequence of kMaxTokens, and what goes with it. Less if the daemon has little RAM, since it holds
// such a message several times over while it serves it.
constexpr uint64_t TokenMessageBytes(uint64_t ram_budget_bytes) {
  return std::clamp(ram_budget_bytes / 128, kMaxMessageBytes, uint64_t{9} << 20);
}
inline constexpr uint64_t kMaxUnreadEventBytes = uint64_t{8} << 20;  // of one session's stream
inline constexpr uint64_t kStagingAlignment = 128;
inline constexpr uint32_t kMaxWorkerBytes = 128;
inline constexpr uint32_t kMaxRequestIdBytes = 256;
inline constexpr uint32_t kMaxReasonBytes = 1024;  // why a model is not shared

}  // namespace prefixd::wire
