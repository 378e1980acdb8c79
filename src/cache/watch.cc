// Watch: tells sessions which groups of a lease became readable, in group order, and where a lease
// ends because a page turned out bad.
#include <algorithm>

#include "cache/core.h"

namespace prefixd::cache {

void Bell::Ring() {
  {
    base::MutexLock lock(mutex);
    rung = true;
  }
  wake.NotifyAll();
}

void Bell::Stop() {
  {
    base::MutexLock lock(mutex);
    stop = true;
  }
  wake.NotifyAll();
}

bool Bell::Wait(std::optional<std::chrono::milliseconds> limit) {
  base::MutexLock lock(mutex);
  bool in_time = true;
  const base::Deadline until = std::chrono::steady_clock::now() + limit.value_or(limit->zero());
  while (!rung && !stop && in_time) {
    if (limit.has_value()) {
      in_time = wake.WaitUntil(mutex, until);
    } else {
      wake.Wait(mutex);
    }
  }
  rung = false;
  return !stop;
}

void Core::AddWatch(Watch watch) {
  if (watch.pages.empty()) return;
  {
    base::MutexLock lock(watch_mutex);
    new_watches.push_back(std::move(watch));
  }
  watch_bell.Ring();
}

void Core::TellReady(const Watch& watch, uint32_t group, std::vector<block::LeasedPage> untold) {
  const SessionPtr session = watch.session.lock();
  if (session == nullptr) return;
  base::MutexLock lock(session->event_mutex);
  if (session->on_event == nullptr) return;
  SessionEvent event;
  event.kind = SessionEvent::Kind::kLeaseReady;
  event.lease = watch.id;
  event.group = group;
  event.pages = std::move(untold);
  session->on_event(event);
}

void Core::TellFailed(Watch* watch, const index::PageInfo& page) {
  const block::ShortenReason reason = WhyNotInRam(page);
  const SessionPtr session = watch->session.lock();
  const LeasePtr lease = watch->lease.lock();
  if (session == nullptr || lease == nullptr) return;
  // With sliding or state groups what is shorter needs pages that this lease does not hold.
  const bool regular = lease->space != nullptr && lease->space->regular;
  const uint32_t usable = regular ? page.first_token : 0;
  CountShortened(reason, lease->facts().tokens - usable);
  // The index goes on holding what is behind: the worker may be reading it until it hears of this,
  // and gives it up when it releases or continues the lease.
  lease->CutTo(usable);
  base::MutexLock lock(session->event_mutex);
  if (session->on_event == nullptr) return;
  SessionEvent event;
  event.kind = SessionEvent::Kind::kLeaseFailed;
  event.lease = watch->id;
  event.group = page.ref.group;
  event.usable_tokens = usable;
  event.reason = reason;
  session->on_event(event);
}

bool Core::Advance(Watch* watch) {
  const LeasePtr lease = watch->lease.lock();
  if (lease == nullptr || watch->session.expired()) return false;
  while (watch->next < watch->pages.size()) {
    const index::PageInfo& told = watch->pages[watch->next];
    const uint32_t group = told.ref.group;
    if (told.first_token < lease->facts().tokens) {
      index::PageInfo page = index->WaitWhilePromoting(told.ref, base::Deadline());
      if (page.state == index::PageState::kPromoting) return true;
      page.first_token = told.first_token;
      page.ref = told.ref;
      if (!index::InRam(page.state)) {
        TellFailed(watch, page);
      } else if (page.extent != told.extent) {
        watch->untold.push_back({.group = group,
                                 .rung = told.ref.rung,
                                 .first_token = told.first_token,
                                 .page_tokens = told.name.tokens,
                                 .tokens = told.tokens,
                                 .in_ram = true,
                                 .offset = page.extent.offset});
      }
    }
    ++watch->next;
    const bool last =
        watch->next == watch->pages.size() || watch->pages[watch->next].ref.group != group;
    if (!last) continue;
    const uint32_t tokens = lease->facts().tokens;
    std::erase_if(watch->untold,
                  [tokens](const block::LeasedPage& page) { return page.first_token >= tokens; });
    if (tokens > 0) TellReady(*watch, group, std::move(watch->untold));
    watch->untold.clear();
  }
  return false;
}

void Core::WatchLoop() {
  std::vector<Watch> watches;
  while (watch_bell.Wait(std::nullopt)) {
    {
      base::MutexLock lock(watch_mutex);
      std::ranges::move(new_watches, std::back_inserter(watches));
      new_watches.clear();
    }
    std::erase_if(watches, [this](Watch& watch) { return !Advance(&watch); });
  }
}

}  // namespace prefixd::cache
