// Rewriting: chooses what is worth keeping of segments that leave the SSD.
#include <algorithm>
#include <map>

#include "index/impl.h"

namespace prefixd::index {
namespace {

bool Inside(const RewriteOptions& range, uint64_t sequence) {
  return sequence != 0 && range.first <= sequence && sequence <= range.last;
}

// Returns whether the page's copy leaves and can be written again. A page that an earlier daemon
// left in RAM must be checked first.
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

// Returns whether a child has pages that do not leave, or is a hole.
bool IsContinued(const Node& node, const RewriteOptions& range) {
  return std::ranges::any_of(node.children(), [&](const Node* child) {
    return AnyInRam(*child) || StaysOnSsd(*child, range) || child->pages().empty();
  });
}

// A block with pages in the range, as it was when PickRewrite looked at it.
struct Candidate {
  BlockRef block;
  const Space* space = nullptr;
  int64_t stamp = 0;
  uint64_t leaving_bytes = 0;
  bool continued = false, record_leaves = false;
};

// The page bytes that each space with an SSD floor lacks to it; 0 if it is above.
using Lacking = std::map<const Space*, uint64_t>;

// Takes out of `leaving` the first candidates that their spaces lack, and returns them.
std::vector<Candidate> TakeKept(Lacking lacking, std::vector<Candidate>* leaving) {
  std::vector<Candidate> kept;
  std::erase_if(*leaving, [&](const Candidate& candidate) {
    const auto found = lacking.find(candidate.space);
    if (found == lacking.end() || found->second == 0) return false;
    found->second -= std::min(found->second, candidate.leaving_bytes);
    kept.push_back(candidate);
    return true;
  });
  return kept;
}

// Returns the candidates of `from` that, in this order, fit into `limit_bytes` together with
// `*bytes`, and adds their bytes to it. The others go to `records`.
std::vector<BlockRef> Fitting(const std::vector<Candidate>& from, uint64_t limit_bytes,
                              uint64_t* bytes, std::vector<BlockRef>* records) {
  std::vector<BlockRef> fitting;
  for (const Candidate& candidate : from) {
    const bool fits = *bytes + candidate.leaving_bytes <= limit_bytes;
    if (fits) *bytes += candidate.leaving_bytes;
    (fits ? fitting : *records).push_back(candidate.block);
  }
  return fitting;
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

// Decides by what it saw in steps under the mutex, and looks again at each block that it picks.
std::vector<SpillBlock> PrefixIndex::PickRewrite(const RewriteOptions& options) {
  std::vector<Candidate> leaving, hot, warm;
  std::vector<BlockRef> records;
  Lacking lacking;
  impl_->ForEachInSteps([&](Node& node) {
    const bool record_leaves = Inside(options, node.record_sequence());
    const uint64_t bytes = LeavingBytes(node, options);
    if (!node.in_tree || node.spilling || (bytes == 0 && !record_leaves)) return;
    const BlockRef block{&node, node.id()};
    if (bytes == 0) {
      records.push_back(block);
      return;
    }
    if (node.space()->limits.ssd_floor_bytes > 0) lacking[node.space()] += bytes;
    leaving.push_back(
        {block, node.space(), node.stamp, bytes, IsContinued(node, options), record_leaves});
  });
  {
    const base::MutexLock lock(impl_->mutex);
    for (auto& [space, bytes] : lacking) {
      const uint64_t staying = space->totals.ssd_pages - std::min(space->totals.ssd_pages, bytes);
      bytes = space->limits.ssd_floor_bytes - std::min(space->limits.ssd_floor_bytes, staying);
    }
  }
  std::ranges::stable_sort(leaving, std::greater<>(), &Candidate::stamp);
  const std::vector<Candidate> kept = TakeKept(std::move(lacking), &leaving);
  for (const Candidate& candidate : leaving) {
    if (candidate.stamp > options.hot_after) {
      hot.push_back(candidate);
    } else if (candidate.stamp > options.warm_after || candidate.continued) {
      warm.push_back(candidate);
    } else if (candidate.record_leaves) {
      records.push_back(candidate.block);
    }
  }
  uint64_t bytes = 0;
  std::vector<SpillBlock> picked;
  const auto pick = [&](Node& node, bool pages) PREFIXD_REQUIRES(impl_->mutex) {
    if (!node.in_tree || node.spilling) return;
    picked.push_back(impl_->PickAgain(node, options, pages));
  };
  const auto pick_all = [&](const std::vector<Candidate>& from, uint64_t limit_bytes) {
    const auto fitting = Fitting(from, limit_bytes, &bytes, &records);
    impl_->ForEachInSteps(fitting,
                          [&](Node& node) PREFIXD_REQUIRES(impl_->mutex) { pick(node, true); });
  };
  pick_all(kept, ~uint64_t{0});
  pick_all(hot, options.hot_bytes);
  pick_all(warm, options.warm_bytes);
  impl_->ForEachInSteps(records, [&](Node& node) PREFIXD_REQUIRES(impl_->mutex) {
    // Without the record a restart would not find what stays on SSD at or below the block.
    const bool needed = StaysOnSsd(node, options) || !node.children().empty();
    if (needed && Inside(options, node.record_sequence())) pick(node, false);
  });
  std::ranges::stable_sort(picked, {}, &SpillBlock::first_token);
  return picked;
}

}  // namespace prefixd::index
