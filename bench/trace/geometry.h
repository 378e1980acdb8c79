// A trace's blocks in the units of a cache: which tokens, which pages, and how large a RAM budget
// holds a given number of them.
//
// Plain values; one thread.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "bench/trace/file.h"
#include "block/space_identity.h"
#include "block/tokens.h"

namespace prefixd::bench {

// A block of the trace is one or more KV blocks of `block_tokens`, each a page of `page_bytes`.
struct TraceShape {
  uint32_t block_tokens = 16;
  uint32_t kv_blocks = 1;       // of a block of the trace
  uint64_t page_bytes = 16384;  // a multiple of 4 KiB: the extent is the page
  uint32_t tokens() const { return block_tokens * kv_blocks; }
  // A block of the trace stands for 512 tokens: where the daemon's default of 3,072 lies then.
  uint32_t shallow_tokens() const { return 6 * tokens(); }
};

// One layer of raw f16 heads, as many as make the pages.
block::SpaceIdentity IdentityOf(const TraceShape& shape);

// The tokens of a path. They follow from the ids alone; different ids differ in their first token.
std::vector<block::Token> TokensOf(const TraceShape& shape, std::span<const TraceBlock> path);

// A RAM budget whose arena has room for `blocks` blocks of the trace, or a few less.
struct RamFit {
  TraceShape shape;
  uint64_t ram_bytes = 0;
  uint64_t blocks = 0;  // that it has room for
};
// Page sizes from `shape`'s upwards are tried, since an arena is whole slabs of whole pages.
// Private memory; `has_ssd` as the cache will have it. Its index holds reservations of `longest`
// blocks. Requires: blocks > 0.
RamFit FitRam(const TraceShape& shape, uint64_t blocks, uint64_t longest, bool has_ssd);

}  // namespace prefixd::bench
