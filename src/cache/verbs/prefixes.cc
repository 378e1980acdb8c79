// ListPrefixes: what the remembered answers had in common.
#include "cache/verbs/prefix_tree.h"
#include "cache/verbs/verbs.h"

namespace prefixd::cache::verbs {
namespace {

constexpr size_t kMostBlocks = size_t{1} << 17;  // that the tree is made of: 8 million tokens of 64

}  // namespace

block::HotPrefixes ListPrefixes(const Context& context, const Tables& tables,
                                const block::SpaceId* space, uint32_t most) {
  block::HotPrefixes found;
  PrefixTree tree;
  for (const History::Read& read : tables.history.Reads(space, context.Now())) {
    if (tree.size() >= kMostBlocks) break;
    const std::vector<index::PathBlock> path = context.index->PathUp(
        read.last_full, read.tokens, [&](uint64_t node_id) { return tree.Knows(node_id); });
    if (path.empty()) {
      ++found.gone;
      continue;
    }
    ++found.requests;
    tree.Add(read.space, path, read.age_s);
  }
  found.prefixes = tree.Hottest(most);
  return found;
}

}  // namespace prefixd::cache::verbs
