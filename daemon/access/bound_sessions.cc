#include "daemon/access/bound_sessions.h"

namespace prefixd::daemon {

void BoundSessions::Bind(block::SessionId session, Owner owner) {
  base::MutexLock lock(mutex_);
  owners_[session] = std::move(owner);
}

void BoundSessions::Unbind(block::SessionId session) {
  base::MutexLock lock(mutex_);
  owners_.erase(session);
}

std::optional<BoundSessions::Owner> BoundSessions::Find(block::SessionId session) const {
  base::MutexLock lock(mutex_);
  const auto found = owners_.find(session);
  if (found == owners_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::pair<block::SessionId, BoundSessions::Owner>> BoundSessions::Lost(
    const Principals& principals, absl::Time now) const {
  std::vector<std::pair<block::SessionId, Owner>> lost;
  base::MutexLock lock(mutex_);
  for (const auto& [session, owner] : owners_) {
    if (principals.Find(owner.name, owner.tenant, now) == nullptr)
      lost.emplace_back(session, owner);
  }
  return lost;
}

}  // namespace prefixd::daemon
