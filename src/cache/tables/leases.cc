// The table of leases, and what ends one.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/tables/sessions.h"

namespace prefixd::cache {

Lease::~Lease() {
  if (owner_->stopping || !in_index_) return;
  owner_->index->Release(in_index_).IgnoreError();  // known: this object is its only holder
  owner_->FreeTaken();
}

void Lease::AddTo(const absl::flat_hash_map<block::LeaseId, block::LeaseInfo>& in_index,
                  block::LeaseInfo* info) const {
  if (const auto found = in_index.find(in_index_); found != in_index.end()) {
    info->pages += found->second.pages;
    info->bytes += found->second.bytes;
  }
  if (space != nullptr) info->space = space->id;
  info->tokens = std::max(info->tokens, facts().tokens);
  for (const auto& extent : kept) {
    ++info->pages;
    info->bytes += extent->bytes();
  }
  for (const auto& other : others) other->AddTo(in_index, info);
}

absl::StatusOr<LeasePtr> Sessions::FindLease(block::SessionId session, block::LeaseId lease) const {
  base::MutexLock lock(mutex_);
  auto found = leases_.find(lease);
  if (found == leases_.end() || found->second.session->id != session ||
      !found->second.session->attached) {
    return absl::NotFoundError(
        absl::StrCat("lease: ", lease.value, " is not held by this session"));
  }
  return found->second.lease;
}

absl::Status Sessions::AddLease(const SessionPtr& session, block::LeaseId id, LeasePtr lease) {
  if (session->charge_lease != nullptr) {
    const LeaseFacts facts = lease->facts();
    PREFIXD_ASSIGN_OR_RETURN(
        lease->charge, session->charge_lease(facts.ram_bytes + facts.ssd_bytes + facts.far_bytes));
  }
  base::MutexLock lock(mutex_);
  if (!session->attached) return absl::NotFoundError("lease: the session ended");
  session->leases.insert(id);
  leases_[id] = {session, std::move(lease)};
  return absl::OkStatus();
}

absl::StatusOr<LeasePtr> Sessions::TakeLease(block::SessionId session, block::LeaseId lease) {
  PREFIXD_ASSIGN_OR_RETURN(LeasePtr taken, FindLease(session, lease));
  base::MutexLock lock(mutex_);
  auto found = leases_.find(lease);
  if (found == leases_.end()) {
    return absl::NotFoundError(absl::StrCat("lease: ", lease.value, " was released"));
  }
  found->second.session->leases.erase(lease);
  leases_.erase(found);
  return taken;
}

std::vector<block::LeaseInfo> Sessions::ListLeases() const {
  absl::flat_hash_map<block::LeaseId, block::LeaseInfo> in_index;
  for (const block::LeaseInfo& info : context_->index->ListLeases()) in_index[info.lease] = info;
  std::vector<block::LeaseInfo> list;
  base::MutexLock lock(mutex_);
  for (const auto& [id, held] : leases_) {
    block::LeaseInfo info{.lease = id, .session = {}, .holder = NameOf(held.session->id)};
    info.age_s = static_cast<double>(context_->Now() - held.lease->begun_us) * 1e-6;
    held.lease->AddTo(in_index, &info);
    list.push_back(info);
  }
  std::ranges::sort(list, {}, [](const block::LeaseInfo& info) { return -info.age_s; });
  return list;
}

}  // namespace prefixd::cache
