#include "cache/store/admission.h"

#include <algorithm>
#include <set>
#include <utility>

namespace prefixd::cache {

bool LikelyReuse::Admits(const index::SpillBlock& block) const {
  // What is stored counts as its first touch; a block that has a page on SSD keeps its others
  // there too.
  return block.first_token < shallow_tokens_ || block.touches >= 1 || block.was_ghost ||
         block.pinned || !block.ssd_pages.empty();
}

std::vector<index::SpillBlock> TakeRefused(const AdmissionRule& rule,
                                           std::vector<index::SpillBlock>* blocks) {
  std::set<uint64_t> needed;  // serials of parents of admitted blocks
  const auto is_needed = [&](const index::SpillBlock& block) {
    return block.serials.own != 0 && needed.contains(block.serials.own);
  };
  std::vector<index::SpillBlock> admitted, refused;
  for (auto block = blocks->rbegin(); block != blocks->rend(); ++block) {
    const bool in = block->pages.empty() || is_needed(*block) || rule.Admits(*block);
    if (in) needed.insert(block->serials.parent);
    (in ? admitted : refused).push_back(std::move(*block));
  }
  std::ranges::reverse(admitted);
  *blocks = std::move(admitted);
  return refused;
}

}  // namespace prefixd::cache
