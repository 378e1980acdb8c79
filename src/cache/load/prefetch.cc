// Prefetch: pages that a queued request will want are read from SSD, after every page that somebody
// waits for. They are held until the last of them is there, by no worker's session.
#include <algorithm>
#include <utility>

#include "cache/load/loader.h"

namespace prefixd::cache {

uint64_t Loader::BoundPrefetch(const std::vector<index::PageInfo>& pages, uint32_t* tokens) const {
  const uint64_t limit = context_->arena->stats().capacity_bytes / 8;
  const uint64_t taken = prefetching_bytes_.load();
  uint64_t left = limit - std::min(limit, taken);
  uint64_t bytes = 0;
  std::vector<const index::PageInfo*> order;
  for (const index::PageInfo& page : pages) {
    if (page.state == index::PageState::kSsd) order.push_back(&page);
  }
  std::ranges::stable_sort(order, {}, &index::PageInfo::first_token);
  for (const index::PageInfo* page : order) {
    if (page->page_bytes > left) {
      *tokens = std::min(*tokens, page->first_token);
      break;
    }
    left -= page->page_bytes;
  }
  for (const index::PageInfo* page : order) {
    if (page->first_token < *tokens) bytes += page->page_bytes;
  }
  return bytes;
}

void Loader::Prefetch(PrefetchHint hint) {
  prefetching_bytes_ += hint.bytes;
  {
    base::MutexLock lock(mutex_);
    hints_.push_back(std::move(hint));
  }
  wake_.NotifyAll();
}

// Reads one page of the oldest hint if there is room for it without waiting.
bool Loader::PrefetchOne() {
  PrefetchHint hint;
  index::PageInfo page;
  {
    base::MutexLock lock(mutex_);
    if (hints_.empty()) return false;
    PrefetchHint& first = hints_.front();
    page = first.pages[first.next++];
    hint = {.lease = first.lease, .space = first.space};
    if (first.next == first.pages.size()) {
      prefetching_bytes_ -= first.bytes;
      hints_.pop_front();  // not the last to hold its lease: we do
    }
  }
  if (context_->index->BeginPromotion(page.ref)) {
    const absl::StatusOr<block::Extent> extent =
        room_->Take(page.page_bytes, hint.space->FullPageBytes(page.ref.group, page.ref.rung),
                    std::chrono::steady_clock::now());
    if (extent.ok()) {
      Promote({.page = page, .extent = *extent, .queued_us = NowMicros()});
    } else {
      Refuse(page.ref);
      changed_->Notify();
    }
  }
  return true;
}

}  // namespace prefixd::cache
