// Resume: a session that was cut off goes on under a new id, and keeps what it may still be
// reading.
#include "cache/core.h"

namespace prefixd::cache {

bool Core::Resume(const SessionKey& key, const SessionPtr& session, BegunSession* begun) {
  SessionPtr earlier;
  {
    base::MutexLock lock(mutex);
    for (const auto& [id, known] : sessions) {
      if (known->key == key && known->slot != nullptr) earlier = known;
    }
  }
  if (earlier == nullptr) return false;
  CutOff(earlier);  // when its old stream has not noticed yet
  auto held = std::make_shared<Lease>(this, block::LeaseId{}, nullptr);
  held->begun_us = session->begun_us;
  LeaseFacts facts;
  {
    base::MutexLock lock(mutex);
    if (sessions.erase(earlier->id) == 0) return false;  // its slot was not locked any more
    session->slot = earlier->slot;
    session->pid = earlier->pid;
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
  slots->Rename(session->slot_number(), session->id, session->key, session->pid);
  counters.Add("sessions.resumed");
  return true;
}

}  // namespace prefixd::cache
