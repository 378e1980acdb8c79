// Resume: a session that was cut off goes on under a new id, and keeps what it may still be
// reading.
#include "base/peer.h"
#include "cache/core.h"

namespace prefixd::cache {

bool Core::Resume(const SessionKey& key, const SessionPtr& session, BegunSession* begun) {
  SessionPtr earlier;
  std::optional<base::Peer> owner;
  {
    base::MutexLock lock(mutex);
    earlier = FindByKey(key);
    if (earlier != nullptr) owner = earlier->peer;
  }
  if (earlier == nullptr || earlier->slot == nullptr) return false;
  if (owner.has_value() && session->peer.has_value() &&
      !base::MayBeSameProcess(*owner, *session->peer)) {
    counters.Add("sessions.resume_refused");
    Log(LogLevel::kWarning,
        absl::StrCat("attach: resume refused: this is ", base::Describe(*session->peer),
                     ", the session is that of ", base::Describe(*owner)));
    return false;
  }
  CutOff(earlier);  // when its old stream has not noticed yet
  auto held = std::make_shared<Lease>(this, block::LeaseId{}, nullptr);
  held->begun_us = session->begun_us;
  LeaseFacts facts;
  {
    base::MutexLock lock(mutex);
    if (sessions.erase(earlier->id) == 0) return false;  // its slot was not locked any more
    session->slot = earlier->slot;
    if (!session->peer.has_value()) session->peer = earlier->peer;
    for (block::LeaseId id : earlier->leases) {
      auto found = leases.find(id);
      if (found == leases.end()) continue;
      const LeaseFacts one = found->second.lease->facts();
      facts.pages += one.pages;
      facts.ram_bytes += one.ram_bytes + one.ssd_bytes;
      held->others.push_back(std::move(found->second.lease));
      leases.erase(found);
    }
    if (!held->others.empty()) {
      held->SetFacts(facts);
      begun->resumed_lease = block::LeaseId{lease_base + kOwnLeases + next_own_lease++};
      session->leases.insert(begun->resumed_lease);
      leases[begun->resumed_lease] = {session, std::move(held)};
    }
  }
  slots->Rename(session->slot_number(), session->key_hash);
  counters.Add("sessions.resumed");
  return true;
}

}  // namespace prefixd::cache
