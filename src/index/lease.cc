// Acquire, shrink, release: who holds which pages.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "index/impl.h"

namespace prefixd::index {
namespace {

uint64_t BytesOf(const Page& page) {
  return InRam(page.state) ? page.extent.bytes : page.page_bytes;
}

uint64_t MemoryOf(const Lease& lease) {
  return sizeof(Lease) + 32 + lease.pages.capacity() * sizeof(HeldPage);
}

}  // namespace

uint32_t PrefixIndex::Impl::CutToQuota(const RestorablePath& path, const Usable& usable,
                                       uint32_t tokens, block::SessionId session) const {
  const auto known = sessions.find(session);
  uint64_t of_session = known == sessions.end() ? 0 : known->second.leased_bytes;
  uint64_t of_all = totals.leased_bytes;
  for (const Node* const node : path.blocks) {
    if (node->first_token >= tokens) return tokens;
    for (const Usable::Group& group : usable.groups) {
      const Page& page = *BestPage(*node, group);
      of_session += BytesOf(page);
      if (page.holders == 0) of_all += BytesOf(page);
    }
    if (of_session > options.session_lease_bytes || of_all > options.total_lease_bytes) {
      return node->first_token;
    }
  }
  return tokens;
}

void PrefixIndex::Impl::Hold(const RestorablePath& path, const Usable& usable, uint32_t tokens,
                             block::SessionId session, Acquired& acquired) {
  std::vector<Node*> blocks;
  for (Node* const node : path.blocks) {
    if (node->first_token < tokens) blocks.push_back(node);
  }
  Lease lease;
  lease.session = session;
  lease.pages.reserve(blocks.size() * usable.groups.size());
  for (Node* const node : blocks) {
    const Change change(*this, *node);
    for (const Usable::Group& group : usable.groups) {
      const Page& best = *BestPage(*node, group);
      Page& page = *FindPage(*node, best.group, best.rung);
      ++page.holders;
      ++node->pins;
      lease.pages.push_back({node, page.group, page.rung, BytesOf(page)});
    }
  }
  acquired.pages.reserve(lease.pages.size());
  for (size_t group = 0; group < usable.groups.size(); ++group) {
    for (size_t i = group; i < lease.pages.size(); i += usable.groups.size()) {
      const HeldPage& held = lease.pages[i];
      PageInfo info = InfoOf(*held.node, *FindPage(*held.node, held.group, held.rung));
      info.tokens = std::min(info.tokens, tokens - info.first_token);
      acquired.pages.push_back(info);
    }
  }
  StampPath(blocks.back());
  acquired.lease = block::LeaseId{next_id++};
  Session& of = sessions[session];
  for (const HeldPage& held : lease.pages) of.leased_bytes += held.charge;
  of.leases.insert(acquired.lease);
  table_bytes += MemoryOf(lease);
  leases.emplace(acquired.lease, std::move(lease));
}

void PrefixIndex::Impl::GiveUp(Lease& lease, uint32_t tokens) {
  table_bytes -= MemoryOf(lease);
  std::vector<HeldPage> given_up;
  std::erase_if(lease.pages, [&](const HeldPage& held) {
    if (held.node->first_token < tokens) return false;
    given_up.push_back(held);
    return true;
  });
  Session& session = sessions[lease.session];
  for (size_t i = 0; i < given_up.size();) {
    Node* const node = given_up[i].node;
    {
      const Change change(*this, *node);
      for (; i < given_up.size() && given_up[i].node == node; ++i) {
        --FindPage(*node, given_up[i].group, given_up[i].rung)->holders;
        --node->pins;
        session.leased_bytes -= given_up[i].charge;
      }
    }
    Settle(node);
  }
  table_bytes += MemoryOf(lease);
}

absl::Status PrefixIndex::Impl::EndLease(block::LeaseId id) {
  const auto it = leases.find(id);
  if (it == leases.end()) {
    return absl::NotFoundError(absl::StrCat("lease ", id.value, ": unknown or released"));
  }
  Lease& lease = it->second;
  GiveUp(lease, 0);
  table_bytes -= MemoryOf(lease);
  const auto session = sessions.find(lease.session);
  session->second.leases.erase(id);
  if (session->second.leases.empty() && session->second.reservations.empty()) {
    sessions.erase(session);
  }
  leases.erase(it);
  return absl::OkStatus();
}

Acquired PrefixIndex::Acquire(block::SpaceHandle handle, const block::SequenceView& request,
                              const MatchOptions& options, block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  Acquired acquired;
  Space* const space = impl_->FindSpace(handle);
  if (space == nullptr) return acquired;
  const uint32_t block_tokens = space->shape.block_tokens;
  const Walk walk = WalkDown(space->root, block_tokens, request);
  const Usable usable = UsableOf(space->shape, options.selection);
  const RestorablePath path = FindRestorable(walk, block_tokens, request, usable);
  acquired.answer = impl_->Answer(*space, request, walk, path, usable, options, session);
  const uint32_t allowed =
      impl_->CutToQuota(path, usable, acquired.answer.restorable_tokens, session);
  ShortenToQuota(allowed, request, path, usable, options, acquired.answer);
  if (acquired.answer.restorable_tokens > 0) {
    impl_->Hold(path, usable, acquired.answer.restorable_tokens, session, acquired);
  }
  return acquired;
}

absl::Status PrefixIndex::ShrinkLease(block::LeaseId lease, uint32_t tokens) {
  const base::MutexLock lock(impl_->mutex);
  const auto it = impl_->leases.find(lease);
  if (it == impl_->leases.end()) {
    return absl::NotFoundError(absl::StrCat("lease ", lease.value, ": unknown or released"));
  }
  impl_->GiveUp(it->second, tokens);
  return absl::OkStatus();
}

absl::Status PrefixIndex::Release(block::LeaseId lease) {
  const base::MutexLock lock(impl_->mutex);
  return impl_->EndLease(lease);
}

size_t PrefixIndex::EndSession(block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  const auto it = impl_->sessions.find(session);
  if (it == impl_->sessions.end()) return 0;
  const std::vector<block::LeaseId> leases(it->second.leases.begin(), it->second.leases.end());
  const std::vector<block::ReservationId> reservations(it->second.reservations.begin(),
                                                       it->second.reservations.end());
  for (const block::LeaseId id : leases) (void)impl_->EndLease(id);
  for (const block::ReservationId id : reservations) (void)impl_->EndReservation(id);
  return leases.size() + reservations.size();
}

}  // namespace prefixd::index
