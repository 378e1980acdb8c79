#include "remote/shares.h"

#include <algorithm>
#include <set>

namespace prefixd::remote {

Shares::Share::Share(Shares* shares, const void* node, uint64_t bytes)
    : shares_(shares), node_(node), bytes_(bytes) {
  const base::MutexLock lock(shares_->mutex_);
  shares_->waiting_.push_back(this);
  shares_->GrantWaiting();
  if (!granted_) granted_event_.emplace();
}

Shares::Share::~Share() {
  const base::MutexLock lock(shares_->mutex_);
  if (granted_) {
    shares_->total_ -= bytes_;
    const auto mine = shares_->in_flight_.find(node_);
    if ((mine->second -= bytes_) == 0) shares_->in_flight_.erase(mine);
  } else {
    shares_->waiting_.remove(this);
  }
  shares_->GrantWaiting();
}

bool Shares::Share::granted() const {
  const base::MutexLock lock(shares_->mutex_);
  return granted_;
}

uint64_t Shares::InFlight(const void* node) const {
  const base::MutexLock lock(mutex_);
  const auto found = in_flight_.find(node);
  return found == in_flight_.end() ? 0 : found->second;
}

// Who waits for its node lets others pass to theirs; who waits for the store's bytes lets nobody.
void Shares::GrantWaiting() {
  std::set<const void*> behind;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Share* const share = *it;
    const auto on_way = in_flight_.find(share->node_);
    const uint64_t of_node = on_way == in_flight_.end() ? 0 : on_way->second;
    if (behind.contains(share->node_) || (of_node > 0 && of_node + share->bytes_ > most_.of_node)) {
      behind.insert(share->node_);
      ++it;
      continue;
    }
    if (total_ > 0 && total_ + share->bytes_ > most_.of_store) return;
    total_ += share->bytes_;
    in_flight_[share->node_] += share->bytes_;
    share->granted_ = true;
    if (share->granted_event_.has_value()) share->granted_event_->Set();
    it = waiting_.erase(it);
  }
}

}  // namespace prefixd::remote
