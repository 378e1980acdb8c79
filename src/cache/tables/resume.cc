// Resume: a session that was cut off goes on under a new id, and keeps what it may still be
// reading.
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/peer.h"
#include "cache/tables/sessions.h"

namespace prefixd::cache {

bool Sessions::Resume(const SessionKey& key, const SessionPtr& session, BegunSession* begun) {
  SessionPtr earlier;
  std::optional<base::Peer> owner;
  {
    base::MutexLock lock(mutex_);
    earlier = FindByKey(key);
    if (earlier != nullptr) owner = earlier->peer;
  }
  if (earlier == nullptr || earlier->slot == nullptr) return false;
  if (owner.has_value() && session->peer.has_value() &&
      !base::MayBeSameProcess(*owner, *session->peer)) {
    context_->counters.Add("sessions.resume_refused");
    context_->Log(LogLevel::kWarning,
                  absl::StrCat("attach: resume refused: this is ", base::Describe(*session->peer),
                               ", the session is that of ", base::Describe(*owner)));
    return false;
  }
  CutOff(earlier);  // its old stream may not have noticed yet
  {
    base::MutexLock lock(mutex_);
    if (sessions_.erase(earlier->id) == 0) return false;  // its slot was not locked any more
    TakeOver(*earlier, session, begun);
  }
  context_->slots->Rename(session->slot_number(), session->key_hash);
  context_->counters.Add("sessions.resumed");
  return true;
}

void Sessions::TakeOver(const Session& earlier, const SessionPtr& session, BegunSession* begun) {
  session->slot = earlier.slot;
  if (!session->peer.has_value()) session->peer = earlier.peer;
  auto held = std::make_shared<Lease>(context_, block::LeaseId{}, nullptr);
  held->begun_us = session->begun_us;
  LeaseFacts facts;
  for (block::LeaseId id : earlier.leases) {
    auto found = leases_.find(id);
    if (found == leases_.end()) continue;
    const LeaseFacts one = found->second.lease->facts();
    facts.pages += one.pages;
    facts.ram_bytes += one.ram_bytes + one.ssd_bytes;
    held->others.push_back(std::move(found->second.lease));
    leases_.erase(found);
  }
  if (held->others.empty()) return;
  held->SetFacts(facts);
  begun->resumed_lease = NewLeaseId();
  session->leases.insert(begun->resumed_lease);
  leases_[begun->resumed_lease] = {session, std::move(held)};
}

}  // namespace prefixd::cache
