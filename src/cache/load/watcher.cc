#include "cache/load/watcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cache/counting.h"

namespace prefixd::cache {

void Watcher::Add(Watch watch) {
  if (watch.pages.empty()) return;
  {
    base::MutexLock lock(mutex_);
    new_watches_.push_back(std::move(watch));
  }
  changed_.Notify();
}

void Watcher::TellReady(const Watch& watch, uint32_t group, std::vector<block::LeasedPage> untold) {
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

void Watcher::TellFailed(Watch* watch, const index::PageInfo& page) {
  const block::ShortenReason reason = refused_->WhyNotInRam(page);
  const SessionPtr session = watch->session.lock();
  const LeasePtr lease = watch->lease.lock();
  if (session == nullptr || lease == nullptr) return;
  // With sliding or state groups a shorter prefix needs pages that this lease does not hold.
  const bool regular = lease->space != nullptr && lease->space->regular;
  const uint32_t usable = regular ? page.first_token : 0;
  CountShortened(reason, lease->facts().tokens - usable, &context_->counters);
  // The index goes on holding the pages behind it: the worker may be reading them until it hears of
  // this. They are given up when it releases the lease.
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

bool Watcher::Advance(Watch* watch) {
  const LeasePtr lease = watch->lease.lock();
  if (lease == nullptr || watch->session.expired()) return false;
  while (watch->next < watch->pages.size()) {
    const index::PageInfo& told = watch->pages[watch->next];
    const uint32_t group = told.ref.group;
    if (told.first_token < lease->facts().tokens) {
      index::PageInfo page = context_->index->WaitWhilePromoting(told.ref, base::Deadline());
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

void Watcher::Step() {
  {
    base::MutexLock lock(mutex_);
    std::ranges::move(new_watches_, std::back_inserter(watches_));
    new_watches_.clear();
  }
  std::erase_if(watches_, [this](Watch& watch) { return !Advance(&watch); });
}

void Watcher::Run() {
  while (changed_.Wait()) Step();
}

}  // namespace prefixd::cache
