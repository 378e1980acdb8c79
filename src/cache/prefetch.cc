// Prefetch: what a request that is still queued will want is read from SSD, behind every page that
// somebody waits for. Its pages are held until the last of them is there, by nobody's session.
#include <algorithm>

#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {

// Cuts the lease to what fits into an eighth of the arena beside other hints.
uint64_t Core::BoundPrefetch(const std::vector<index::PageInfo>& pages, uint32_t* tokens) const {
  const uint64_t limit = arena->stats().capacity_bytes / 8;
  const uint64_t taken = prefetching_bytes.load();
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

absl::StatusOr<Prefetched> Cache::Prefetch(block::SessionId id, const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "prefetch"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  // A session of its own in the index: no quota of the caller's counts a hint.
  const block::SessionId owner{core_->next_fetch.fetch_add(1) | uint64_t{1} << 63};
  index::Acquired held = core_->index->Acquire(request.space, {request.tokens, request.content},
                                               OptionsOf(request, block::kNoSlot), owner);
  core_->counters.Add("prefetches");
  Prefetched answer{.restorable_tokens = held.answer.restorable_tokens};
  if (!held.lease) return answer;
  Prefetching hint{.lease = std::make_shared<Lease>(core_.get(), held.lease, nullptr),
                   .space = space,
                   .pages = std::move(held.pages)};
  uint32_t tokens = answer.restorable_tokens;
  hint.bytes = core_->BoundPrefetch(hint.pages, &tokens);
  if (!space->regular && tokens < answer.restorable_tokens) {  // worth nothing before its end
    tokens = 0;
    hint.bytes = 0;
  }
  answer.tokens = tokens;
  answer.bytes = hint.bytes;
  std::erase_if(hint.pages, [tokens](const index::PageInfo& page) {
    return page.state != index::PageState::kSsd || page.first_token >= tokens;
  });
  if (hint.pages.empty()) return answer;
  if (tokens < answer.restorable_tokens)
    PREFIXD_RETURN_IF_ERROR(core_->index->ShrinkLease(held.lease, tokens));
  core_->counters.AddAll({{"prefetch.pages", hint.pages.size()}, {"prefetch.bytes", hint.bytes}});
  core_->prefetching_bytes += hint.bytes;
  {
    base::MutexLock lock(core_->promote_mutex);
    core_->prefetch_queue.push_back(std::move(hint));
  }
  core_->promote_wake.NotifyAll();
  return answer;
}

// One page of the oldest hint, where there is room for it without waiting. False: there is none.
bool Core::PrefetchOne() {
  Prefetching hint;
  index::PageInfo page;
  {
    base::MutexLock lock(promote_mutex);
    if (prefetch_queue.empty()) return false;
    Prefetching& first = prefetch_queue.front();
    page = first.pages[first.next++];
    hint = {.lease = first.lease, .space = first.space};
    if (first.next == first.pages.size()) {
      prefetching_bytes -= first.bytes;
      prefetch_queue.pop_front();  // not the last to hold its lease: we do
    }
  }
  if (index->BeginPromotion(page.ref)) {
    const absl::StatusOr<block::Extent> extent =
        AllocateExtent(page.page_bytes, hint.space->FullPageBytes(page.ref.group, page.ref.rung),
                       std::chrono::steady_clock::now());
    if (extent.ok()) {
      Promote({.page = page, .extent = *extent, .queued_us = static_cast<uint64_t>(Now())});
    } else {
      RefusePromotion(page.ref);
      watch_bell.Ring();
    }
  }
  return true;
}

}  // namespace prefixd::cache
