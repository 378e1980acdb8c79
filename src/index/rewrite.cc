// Rewriting: what is worth keeping of segments that leave the SSD.
#include <algorithm>
#include <map>

#include "index/impl.h"

namespace prefixd::index {
namespace {

bool Inside(const RewriteOptions& range, uint64_t sequence) {
  return sequence != 0 && range.first <= sequence && sequence <= range.last;
}

// A copy that can be written again: not one that an earlier daemon left to be checked first.
bool IsLeaving(const Page& page, const RewriteOptions& range) {
  const bool settled = page.state() == PageState::kSsd || page.state() == PageState::kRamAndSsd ||
                       page.state() == PageState::kPromoting;
  return settled && Inside(range, page.ssd_sequence());
}

uint64_t LeavingBytes(const Node& node, const RewriteOptions& range) {
  uint64_t bytes = 0;
  for (const Page& page : node.pages()) {
    if (IsLeaving(page, range)) bytes += PageBytes(node, page);
  }
  return bytes;
}

bool StaysOnSsd(const Node& node, const RewriteOptions& range) {
  return std::ranges::any_of(node.pages(), [&](const Page& page) {
    return OnSsd(page) && !Inside(range, page.ssd_sequence());
  });
}

// Blocks below it have pages that do not leave with it.
bool IsContinued(const Node& node, const RewriteOptions& range) {
  return std::ranges::any_of(node.children(), [&](const Node* child) {
    return AnyInRam(*child) || StaysOnSsd(*child, range) || child->pages().empty();
  });
}

// Of each space that would be below its floor without them: so many that it is not, the first ones.
std::vector<Node*> TakeKept(const RewriteOptions& options, std::vector<Node*>* leaving) {
  std::map<const Space*, uint64_t> lacking;  // below its floor, with all of them gone
  for (const Node* const node : *leaving) {
    if (node->space()->limits.ssd_floor_bytes > 0) {
      lacking[node->space()] += LeavingBytes(*node, options);
    }
  }
  for (auto& [space, bytes] : lacking) {
    const uint64_t staying = space->totals.ssd_pages - std::min(space->totals.ssd_pages, bytes);
    bytes = space->limits.ssd_floor_bytes - std::min(space->limits.ssd_floor_bytes, staying);
  }
  std::vector<Node*> kept;
  std::erase_if(*leaving, [&](Node* node) {
    const auto found = lacking.find(node->space());
    if (found == lacking.end() || found->second == 0) return false;
    found->second -= std::min(found->second, LeavingBytes(*node, options));
    kept.push_back(node);
    return true;
  });
  return kept;
}

}  // namespace

SpillBlock PrefixIndex::Impl::PickAgain(Node& node, const RewriteOptions& range, bool pages) {
  SpillBlock block = ForRecord(node);
  block.wanted = node.record_wanted;
  const Change change(*this, node);
  for (Page& page : node.pages()) {
    if (OnSsd(page) && !Inside(range, page.ssd_sequence())) {
      block.ssd_pages.push_back(InfoOf(node, page));
    }
    if (!pages || !IsLeaving(page, range)) continue;
    if (page.state() == PageState::kRamAndSsd) page.set_state(PageState::kSpilling);
    block.pages.push_back(InfoOf(node, page));
  }
  BeginSpill(node);
  return block;
}

std::vector<SpillBlock> PrefixIndex::PickRewrite(const RewriteOptions& options) {
  const base::MutexLock lock(impl_->mutex);
  std::vector<Node*> leaving, hot, warm, records;
  for (Node* const node : impl_->nodes) {
    if (!node->in_tree || node->spilling) continue;
    if (LeavingBytes(*node, options) > 0) {
      leaving.push_back(node);
    } else if (Inside(options, node->record_sequence())) {
      records.push_back(node);
    }
  }
  std::ranges::sort(leaving, std::greater<>(), &Node::stamp);
  const std::vector<Node*> kept = TakeKept(options, &leaving);
  for (Node* const node : leaving) {
    if (node->stamp > options.hot_after) {
      hot.push_back(node);
    } else if (node->stamp > options.warm_after || IsContinued(*node, options)) {
      warm.push_back(node);
    } else if (Inside(options, node->record_sequence())) {
      records.push_back(node);
    }
  }
  std::vector<SpillBlock> picked;
  uint64_t bytes = 0;
  const auto pick = [&](const std::vector<Node*>& nodes, uint64_t limit_bytes)
                        PREFIXD_REQUIRES(impl_->mutex) {
                          for (Node* const node : nodes) {
                            const uint64_t more = LeavingBytes(*node, options);
                            if (bytes + more > limit_bytes) {
                              records.push_back(node);
                              continue;
                            }
                            bytes += more;
                            picked.push_back(impl_->PickAgain(*node, options, true));
                          }
                        };
  pick(kept, ~uint64_t{0});
  pick(hot, options.hot_bytes);
  pick(warm, options.warm_bytes);
  for (Node* const node : records) {
    // What is below it on SSD must be found after a restart.
    const bool needed = StaysOnSsd(*node, options) || !node->children().empty();
    if (needed && Inside(options, node->record_sequence())) {
      picked.push_back(impl_->PickAgain(*node, options, false));
    }
  }
  std::ranges::stable_sort(picked, {}, &SpillBlock::first_token);
  return picked;
}

}  // namespace prefixd::index
