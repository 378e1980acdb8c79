// Copies that bypass the caches, for bytes that would be evicted before their next use. The lines
// of `to` are not read first and do not evict what is in use.
//
// Pure functions, thread-safe. Other threads may read the stored bytes only after StreamFence().
#pragma once
#include <cstddef>

namespace prefixd::base {

// The size of a cache line; a streaming store fills a whole one.
inline constexpr size_t kLineBytes = 64;

bool IsLine(const std::byte* at);  // aligned to kLineBytes
// Bytes after the last whole line go through the caches. Requires: IsLine(to).
void StreamLines(std::byte* to, const std::byte* from, size_t bytes);
// Copies one run of many, to any address. Whole lines of `to` bypass the caches. Prefetches the
// bytes after `from` meanwhile, since the next run is likely to be there.
void StreamRun(std::byte* to, const std::byte* from, size_t bytes);
void StreamFence();

}  // namespace prefixd::base
