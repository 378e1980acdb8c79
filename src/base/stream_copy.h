// Copies past the caches, for bytes that are not used again before others have taken their place:
// the lines of `to` are neither read first nor do they push out what is in use.
//
// Pure functions, thread-safe. What they stored may be read elsewhere after StreamFence() only.
#pragma once
#include <cstddef>

namespace prefixd::base {

// The size of a cache line, which is what streaming stores fill.
inline constexpr size_t kLineBytes = 64;

bool IsLine(const std::byte* at);  // aligned to kLineBytes
// What is behind the last whole line goes through the caches. Requires: IsLine(to).
void StreamLines(std::byte* to, const std::byte* from, size_t bytes);
// One run of many, to any address: what is in whole lines of `to` goes past the caches. Bytes
// behind `from` are asked for meanwhile, since the next run is likely to stand there.
void StreamRun(std::byte* to, const std::byte* from, size_t bytes);
void StreamFence();

}  // namespace prefixd::base
