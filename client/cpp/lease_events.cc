#include "lease_events.h"

#include <algorithm>
#include <utility>

namespace prefixd::client {
namespace {

uint64_t LeaseOf(const v1::SessionEvent& event) {
  if (event.has_ready()) return event.ready().lease();
  return event.has_failed() ? event.failed().lease() : 0;
}

void Deliver(const v1::SessionEvent& event, LeasedPages& pages) {
  if (event.has_ready()) pages.OnReady(event.ready());
  if (event.has_failed()) pages.OnFailed(event.failed());
}

}  // namespace

void LeaseEvents::BeginAsking() {
  base::MutexLock lock(mutex_);
  ++asking_;
}

void LeaseEvents::EndAsking() {
  base::MutexLock lock(mutex_);
  if (--asking_ == 0) kept_.clear();
}

void LeaseEvents::Put(const std::shared_ptr<LeasedPages>& pages) {
  const uint64_t lease = pages->plan().lease.value;
  std::vector<v1::SessionEvent> missed;
  bool ended = false;
  {
    base::MutexLock lock(mutex_);
    ended = session_ != pages->plan().session;
    for (const v1::SessionEvent& event : kept_) {
      if (!ended && LeaseOf(event) == lease) missed.push_back(event);
    }
    if (!ended) listeners_[lease] = pages;
    if (listeners_.size() > swept_at_) {
      std::erase_if(listeners_, [](const auto& entry) { return entry.second.expired(); });
      swept_at_ = std::max<size_t>(64, 2 * listeners_.size());
    }
  }
  for (const v1::SessionEvent& event : missed) Deliver(event, *pages);
  if (ended) pages->Cancel();
}

void LeaseEvents::Begin(const Session& session) {
  base::MutexLock lock(mutex_);
  session_ = session;
}

void LeaseEvents::Tell(const Session& session, const v1::SessionEvent& event) {
  std::shared_ptr<LeasedPages> pages;
  {
    base::MutexLock lock(mutex_);
    const uint64_t lease = LeaseOf(event);
    if (lease == 0 || session_ != session) return;
    if (asking_ > 0) kept_.push_back(event);
    const auto listener = listeners_.find(lease);
    if (listener != listeners_.end()) pages = listener->second.lock();
  }
  if (pages) Deliver(event, *pages);
}

void LeaseEvents::End(const Session& session) {
  std::map<uint64_t, std::weak_ptr<LeasedPages>> listeners;
  {
    base::MutexLock lock(mutex_);
    if (session_ != session) return;
    session_ = {};
    kept_.clear();
    listeners.swap(listeners_);
  }
  for (const auto& [lease, listener] : listeners) {
    if (const auto pages = listener.lock()) pages->Cancel();
  }
}

}  // namespace prefixd::client
