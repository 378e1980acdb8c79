// Frees what sessions that ended still kept: at once where the kernel says that nobody reads it any
// more, else as soon as it does.
#include <algorithm>
#include <iterator>

#include "cache/tables/sessions.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::milliseconds kLookAgain(10);

}  // namespace

bool Sessions::FreeIfUnlocked(const SessionPtr& session) {
  {
    base::MutexLock lock(mutex_);
    if (session->opening_files) return false;
  }
  if (session->slot != nullptr && context_->slots->Locked(session->slot->slot())) return false;
  std::vector<LeasePtr> ended;  // outside the mutex
  base::MutexLock lock(mutex_);
  if (sessions_.erase(session->id) == 0) return true;  // resumed, or freed by another thread
  for (block::LeaseId id : session->leases) {
    auto found = leases_.find(id);
    if (found == leases_.end()) continue;
    ended.push_back(std::move(found->second.lease));
    leases_.erase(found);
  }
  return true;
}

std::vector<SessionPtr> Sessions::CutOffSessions() const {
  std::vector<SessionPtr> cut_off;
  base::MutexLock lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    if (!session->attached) cut_off.push_back(session);
  }
  return cut_off;
}

uint64_t Sessions::KeptStagingOf(uint64_t pid) const {
  uint64_t bytes = 0;
  for (const KeptStaging& kept : kept_staging_) {
    if (kept.pid == pid) bytes += kept.staging->bytes();
  }
  return bytes;
}

bool Sessions::FreeKeptStaging() {
  std::vector<KeptStaging> freed;  // outside the mutex
  base::MutexLock lock(mutex_);
  const auto held = [](const KeptStaging& kept) { return kept.staging->held(); };
  const auto first = std::partition(kept_staging_.begin(), kept_staging_.end(), held);
  std::move(first, kept_staging_.end(), std::back_inserter(freed));
  kept_staging_.erase(first, kept_staging_.end());
  return !kept_staging_.empty();
}

bool Sessions::Step() {
  for (const SessionPtr& session : CutOffSessions()) {
    if (FreeIfUnlocked(session)) context_->counters.Add("sessions.reaped");
  }
  const bool staging_left = FreeKeptStaging();
  return !CutOffSessions().empty() || staging_left;
}

void Sessions::Run() {
  bool more = false;
  while (ended_.Wait(more ? std::optional(kLookAgain) : std::nullopt)) more = Step();
}

}  // namespace prefixd::cache
