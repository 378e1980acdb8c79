// PathUp: which blocks stand above one.
#include "index/impl.h"

namespace prefixd::index {
namespace {

PathBlock PathBlockOf(const Node& node) {
  PathBlock block{.node_id = node.id(),
                  .hash = node.hash,
                  .begin = node.first_token(),
                  .end = node.first_token() + node.size()};
  for (const Page& page : node.pages()) {
    const uint64_t bytes = PageBytes(node, page);
    if (page.has_extent()) block.ram_bytes += bytes;
    if (OnSsd(page)) block.ssd_bytes += bytes;
  }
  return block;
}

}  // namespace

std::vector<PathBlock> PrefixIndex::PathUp(const BlockRef& block, uint32_t tokens,
                                           absl::FunctionRef<bool(uint64_t node_id)> known) const {
  const base::MutexLock lock(impl_->mutex);
  std::vector<PathBlock> path;
  if (block.node == nullptr || impl_->nodes.Find(block.node_id) != block.node) return path;
  if (!block.node->in_tree) return path;
  for (const Node* node = block.node; node != nullptr && !node->is_root(); node = node->parent()) {
    if (node->first_token() + node->size() > tokens) continue;
    path.push_back(PathBlockOf(*node));
    if (known(node->id())) break;
  }
  return path;
}

}  // namespace prefixd::index
