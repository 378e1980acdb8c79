// Traces made for tests.
#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "sizing/trace.h"

namespace prefixd::sizing {

// Paths of block numbers; every block is full.
inline Trace TraceOf(const std::vector<std::vector<TraceBlock>>& paths, uint32_t block_tokens) {
  Trace trace;
  trace.block_tokens = block_tokens;
  for (const std::vector<TraceBlock>& path : paths) {
    trace.requests.push_back({.first = trace.references.size(),
                              .blocks = path.size(),
                              .tokens = path.size() * block_tokens});
    trace.references.insert(trace.references.end(), path.begin(), path.end());
    for (const TraceBlock block : path) trace.unique = std::max<uint64_t>(trace.unique, block + 1);
  }
  trace.block_sizes.assign(trace.unique, block_tokens);
  return trace;
}

struct RandomOptions {
  size_t requests = 100;
  size_t longest = 10;   // blocks
  uint32_t fan_out = 4;  // children of a block
};
// Walks down a tree from its root, at each step to one of fan_out children, the first ones more
// often.
inline std::vector<std::vector<TraceBlock>> RandomPaths(std::mt19937& random,
                                                        const RandomOptions& options) {
  std::vector<std::vector<TraceBlock>> children(1);  // [0]: of the root
  std::vector<std::vector<TraceBlock>> paths;
  for (size_t i = 0; i < options.requests; ++i) {
    std::vector<TraceBlock>& path = paths.emplace_back();
    const size_t length = 1 + random() % options.longest;
    for (size_t at = 0; path.size() < length;) {
      const size_t choice = std::min(random() % options.fan_out, random() % options.fan_out);
      if (children[at].size() <= choice) {
        children[at].resize(choice + 1, ~TraceBlock{0});
      }
      if (children[at][choice] == ~TraceBlock{0}) {
        children[at][choice] = static_cast<TraceBlock>(children.size() - 1);
        children.emplace_back();
      }
      path.push_back(children[at][choice]);
      at = path.back() + 1;
    }
  }
  return paths;
}

}  // namespace prefixd::sizing
