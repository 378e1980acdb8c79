// Leases: the table of what sessions hold, and Release, Join, Hold.
#include <algorithm>

#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {

Lease::~Lease() {
  if (owner_->stopping || !in_index_) return;
  owner_->index->Release(in_index_).IgnoreError();  // known: this object is its only holder
  owner_->FreeTaken();
}

PageHold::~PageHold() {
  if (owner_->stopping || !in_index_) return;
  owner_->index->Release(in_index_).IgnoreError();  // known: nobody else has the id
  owner_->FreeTaken();
}

// A session of its own in the index, so that no quota counts the pages twice.
block::SessionId Core::HoldSession() {
  return block::SessionId{next_fetch.fetch_add(1) | uint64_t{1} << 63};
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

absl::StatusOr<LeasePtr> Core::FindLease(block::SessionId session, block::LeaseId lease) const {
  base::MutexLock lock(mutex);
  auto found = leases.find(lease);
  if (found == leases.end() || found->second.session->id != session ||
      !found->second.session->attached) {
    return absl::NotFoundError(
        absl::StrCat("lease: ", lease.value, " is not held by this session"));
  }
  return found->second.lease;
}

absl::Status Core::Register(const SessionPtr& session, block::LeaseId id, LeasePtr lease) {
  base::MutexLock lock(mutex);
  if (!session->attached) return absl::NotFoundError("lease: the session ended");
  session->leases.insert(id);
  leases[id] = {session, std::move(lease)};
  return absl::OkStatus();
}

absl::Status Cache::Release(block::SessionId session, const Released& released) {
  PREFIXD_ASSIGN_OR_RETURN(const LeasePtr lease, core_->FindLease(session, released.lease));
  {
    base::MutexLock lock(core_->mutex);
    auto found = core_->leases.find(released.lease);
    if (found == core_->leases.end()) {
      return absl::NotFoundError(absl::StrCat("lease: ", released.lease.value, " was released"));
    }
    found->second.session->leases.erase(released.lease);
    core_->leases.erase(found);
  }
  const LeaseFacts facts = lease->facts();
  const uint32_t used = std::min(released.used_tokens, facts.tokens);
  core_->counters.Add("tokens.used", used);
  if (lease->answer != 0) {
    core_->history->Learn(lease->answer, used, released.load_us, released.first_token_us);
  }
  if (released.load_us > 0) {
    core_->load_model.Learn(facts.ram_bytes, facts.ssd_bytes, released.load_us);
    core_->counters.Time("load", released.load_us);
  }
  if (released.first_token_us > 0) core_->counters.Time("first_token", released.first_token_us);
  const int64_t age_us = std::max<int64_t>(0, core_->Now() - lease->begun_us);
  core_->counters.AddSecondsSaved(core_->worth.Seconds(
      {.space = lease->space == nullptr ? block::SpaceHandle{} : lease->space->handle,
       .used_tokens = used,
       .told_rate = released.prefill_tokens_per_s,
       .looked_up_rate = lease->prefill_rate,
       .load_us = released.load_us,
       .lease_age_us = static_cast<uint64_t>(age_us)}));
  return absl::OkStatus();
}

absl::StatusOr<Acquired> Cache::Join(block::SessionId id, block::LeaseId lease,
                                     const std::vector<uint32_t>& groups) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "join"));
  LeasePtr joined;
  {
    base::MutexLock lock(core_->mutex);
    auto found = core_->leases.find(lease);
    // Somebody else's space is as good as unknown.
    if (found != core_->leases.end() && found->second.lease->space != nullptr &&
        session->spaces.contains(found->second.lease->space->handle)) {
      joined = found->second.lease;
    }
  }
  if (joined == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("join: no lease ", lease.value, " in a space that this session opened"));
  }
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*joined->space, groups, {}));
  PREFIXD_ASSIGN_OR_RETURN(index::Acquired held,
                           core_->index->Join(joined->in_index(),
                                              {.selection = {.groups = groups, .rungs = {}},
                                               .slot = session->slot_number(),
                                               .max_tokens = joined->facts().tokens},
                                              id));
  core_->counters.Add("leases.joined");
  // What the first holder waits for, this one is told of too.
  return core_->Answer(session, joined->space, std::move(held), {}, 0, nullptr,
                       std::chrono::steady_clock::now());
}

// Not the lease alone: going on with one whose page turned out bad gives up pages behind that, also
// those whose bytes are still on their way out.
std::shared_ptr<const void> Cache::Hold(block::SessionId session, block::LeaseId lease) const {
  const absl::StatusOr<LeasePtr> found = core_->FindLease(session, lease);
  if (!found.ok()) return nullptr;
  struct Held {
    LeasePtr lease;
    std::optional<PageHold> pages;
  };
  auto held = std::make_shared<Held>();
  held->lease = *found;
  if ((*found)->space == nullptr) return held;
  const absl::StatusOr<index::Acquired> joined = core_->index->Join(
      (*found)->in_index(), {.selection = {}, .max_tokens = (*found)->facts().leased},
      core_->HoldSession());
  if (joined.ok()) held->pages.emplace(core_.get(), joined->lease);
  return held;
}

}  // namespace prefixd::cache
