// A trace: the prompts that an engine was asked, in order, as paths through one tree of blocks.
//
// Plain values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace prefixd::sizing {

// A block is a node of the prefix tree: it stands for its tokens and all those before them.
// Numbered from 0 in order of first use.
using TraceBlock = uint32_t;
inline constexpr uint32_t kTraceBlockTokens = 512;  // of an id of "hash_ids"

struct Trace {
  struct Request {
    double at_ms = 0;     // since the trace began; 0 where it does not say
    size_t first = 0;     // in `references`
    size_t blocks = 0;    // the last one may be short
    uint64_t tokens = 0;  // of the prompt
  };
  std::vector<Request> requests;
  std::vector<TraceBlock> references;
  uint64_t unique = 0;        // different blocks
  uint32_t block_tokens = 0;  // of a full block
  // Tokens of each block, by number.
  std::vector<uint32_t> block_sizes;

  std::span<const TraceBlock> blocks(const Request& request) const {
    return std::span(references).subspan(request.first, request.blocks);
  }
};

}  // namespace prefixd::sizing
