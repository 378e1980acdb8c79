// Acquire, LeasePublished, LeasedPages: who may take hold of which pages.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "index/impl.h"

namespace prefixd::index {
namespace {

// Adds to `path` the first child that holds the tokens and has a RAM page of every full group.
// Returns nullptr if there is none.
Node* TakeInRam(const Node& parent, const block::SequenceView& tokens, const Usable& usable,
                RestorablePath& path) {
  ByShared siblings(parent, tokens);
  while (const auto sibling = siblings.Next()) {
    if (sibling->shared < tokens.tokens.size()) return nullptr;
    std::vector<Page*> pages;
    for (const Usable::Group& group : usable.groups) {
      const Page* page = BestPage(*sibling->node, group);
      if (page != nullptr && !InRam(page->state())) page = nullptr;
      if (page == nullptr && group.full()) break;
      pages.push_back(const_cast<Page*>(page));
    }
    if (pages.size() < usable.groups.size()) continue;
    path.blocks.push_back(sibling->node);
    path.pages.insert(path.pages.end(), pages.begin(), pages.end());
    return sibling->node;
  }
  return nullptr;
}

BlockRef LastFull(const RestorablePath& path, uint32_t tokens) {
  for (size_t i = BlocksBefore(path, tokens); i > 0; --i) {
    Node* const node = path.blocks[i - 1];
    const bool full = node->size() == node->space()->shape.block_tokens;
    if (full && node->first_token() + node->size() <= tokens) return {node, node->id()};
  }
  return {};
}

// Returns false, with `table` undefined, if a page is missing or not readable, or if a group has
// pages of two rungs or of snapshots.
bool FillTable(const RestorablePath& path, uint32_t tokens, block::PageTable& table) {
  const size_t blocks = BlocksBefore(path, tokens);
  if (blocks == 0) return false;
  const size_t groups = path.pages.size() / path.blocks.size();
  table.groups.resize(groups);
  table.rungs.resize(groups);
  table.offsets.resize(groups * blocks);
  const SpaceShape& shape = path.blocks.front()->space()->shape;
  for (size_t group = 0; group < groups; ++group) {
    if (path.pages[group] == nullptr || shape.IsState(path.pages[group]->group())) return false;
    table.groups[group] = path.pages[group]->group();
    table.rungs[group] = path.pages[group]->rung();
  }
  for (size_t i = 0; i < blocks; ++i) {  // in the order of the pages in memory
    for (size_t group = 0; group < groups; ++group) {
      if (path.pages[i * groups + group] == nullptr) return false;
      const Page& page = *path.pages[i * groups + group];
      if (!InRam(page.state()) || page.rung() != table.rungs[group]) return false;
      table.offsets[group * blocks + i] = page.extent().offset;
    }
  }
  table.last_page_tokens = path.blocks[blocks - 1]->size();
  return true;
}

// Lists pages group by group, in position order.
void ListPages(const RestorablePath& path, uint32_t tokens, std::vector<PageInfo>& list) {
  if (path.blocks.empty()) return;
  const size_t groups = path.pages.size() / path.blocks.size();
  const size_t blocks = BlocksBefore(path, tokens);
  list.reserve(blocks * groups);
  for (size_t group = 0; group < groups; ++group) {
    for (size_t i = 0; i < blocks; ++i) {
      if (path.pages[i * groups + group] == nullptr) continue;
      PageInfo& info = list.emplace_back();
      Describe(*path.blocks[i], *path.pages[i * groups + group], info);
      info.tokens = std::min(info.tokens, tokens - info.first_token);
    }
  }
}

// Lists the held pages as a table if options.table and they fit one, else in Acquired::pages.
void List(const RestorablePath& path, uint32_t tokens, const MatchOptions& options,
          Acquired& acquired) {
  if (options.table && FillTable(path, tokens, acquired.table)) return;
  acquired.table = {};
  ListPages(path, tokens, acquired.pages);
}

}  // namespace

uint32_t PrefixIndex::Impl::CutToQuota(const Lease& lease, const RestorablePath& path,
                                       uint32_t tokens) const {
  if (path.blocks.empty()) return tokens;
  const auto known = sessions.find(lease.session);
  uint64_t of_session = 0;
  if (known != sessions.end()) {
    of_session = known->second.leased_bytes + known->second.pinned_bytes;
  }
  uint64_t of_all = totals.kept_bytes;
  const size_t groups = path.pages.size() / path.blocks.size();
  for (size_t i = 0; i < path.blocks.size(); ++i) {
    const Node& node = *path.blocks[i];
    if (node.first_token() >= tokens) return tokens;
    for (size_t group = 0; group < groups; ++group) {
      if (path.pages[i * groups + group] == nullptr) continue;
      const Page& page = *path.pages[i * groups + group];
      of_session += BytesOf(node, page);
      if (page.holders() == 0 && node.pinned() == 0) of_all += BytesOf(node, page);
    }
    if (of_session > limits.session_lease_bytes || of_all > limits.total_lease_bytes) {
      return node.first_token();
    }
  }
  return tokens;
}

void PrefixIndex::Impl::KeepQuota(const Lease& lease, const Asked& asked, const Walk& walk,
                                  const MatchOptions& options, RestorablePath& path,
                                  block::MatchAnswer& answer) const {
  const uint32_t before = answer.restorable_tokens;
  uint32_t allowed = CutToQuota(lease, path, before);
  if (lease.usable.regular) return ShortenToQuota(allowed, asked, path, options, answer);
  // A shorter length may need other pages: try again until it fits.
  while (allowed < path.tokens) {
    path = FindAtMost(asked, walk, lease.usable, allowed, options.causal_content);
    allowed = CutToQuota(lease, path, path.tokens);
  }
  if (path.tokens >= before) return;
  Shorten(path.tokens, block::ShortenReason::kLeaseQuota, block::kAllGroups, answer);
  answer.pending_tokens = 0;
  CountTiers(path, answer);
}

void PrefixIndex::Impl::Grant(Lease lease, const RestorablePath& path, const MatchOptions& options,
                              Acquired& acquired) {
  lease.tokens = acquired.answer.restorable_tokens;
  if (lease.tokens <= lease.from) {
    acquired.answer.restorable_tokens = 0;
    return;
  }
  if (!Join(lease, path)) {
    Hold(lease, path, lease.tokens);
    if (lease.pages().empty()) {  // only sliding groups are selected, and no page of them is there
      acquired.answer.restorable_tokens = 0;
      return;
    }
    StampPath(lease.pages().back().node);
    Share(lease, path);
  }
  acquired.from_token = lease.from;
  acquired.last_full = LastFull(path, lease.tokens);
  List(path, lease.tokens, options, acquired);
  acquired.lease = AddLease(std::move(lease));
}

Acquired PrefixIndex::Acquire(block::SpaceHandle handle, const block::SequenceView& request,
                              const MatchOptions& options, block::SessionId session) {
  Acquired acquired;
  impl_->combiner.Run([&]() PREFIXD_REQUIRES(impl_->mutex) {
    acquired = impl_->Acquire(handle, request, options, session);
    impl_->NoteMemory();
  });
  return acquired;
}

Acquired PrefixIndex::Impl::Acquire(block::SpaceHandle handle, const block::SequenceView& request,
                                    const MatchOptions& options, block::SessionId session) {
  Acquired acquired;
  Space* const space = FindSpace(handle);
  if (space == nullptr) return acquired;
  const Asked asked{space, request};
  Lease lease{.session = session,
              .slot = options.slot,
              .space = space,
              .usable = UsableOf(space->shape, options.selection),
              .reads = options.reads};
  const Walk walk = WalkDown(space->root, space->shape.block_tokens, request);
  RestorablePath path;
  if (lease.usable.regular) {
    path = FindRestorable(walk, space->shape.block_tokens, request, lease.usable);
  }
  acquired.answer = Answer(asked, walk, lease.usable, options, session, path);
  KeepQuota(lease, asked, walk, options, path, acquired.answer);
  Grant(std::move(lease), path, options, acquired);
  return acquired;
}

absl::StatusOr<std::vector<PageInfo>> PrefixIndex::LeasedPages(block::LeaseId id,
                                                               const std::vector<uint32_t>& groups,
                                                               uint32_t tokens) const {
  std::vector<PageInfo> list;
  {
    const base::MutexLock lock(impl_->mutex);
    const auto it = impl_->leases.find(id);
    if (it == impl_->leases.end()) {
      return absl::NotFoundError(absl::StrCat("lease ", id.value, ": unknown or released"));
    }
    const Lease& lease = it->second;
    for (const uint32_t group : groups) {
      if (std::ranges::find(lease.usable.groups, group, &Usable::Group::group) !=
          lease.usable.groups.end())
        continue;
      return absl::InvalidArgumentError(
          absl::StrCat("lease ", id.value, ": holds no page of group ", group));
    }
    list.reserve(lease.pages().size());
    for (const HeldPage& held : lease.pages()) {
      if (held.first_token >= tokens) continue;
      if (!groups.empty() && !std::ranges::binary_search(groups, held.group)) continue;
      PageInfo& info = list.emplace_back();
      index::Describe(*held.node, *FindPage(*held.node, held.group, held.rung), info);
      info.tokens = std::min(info.tokens, tokens - info.first_token);
    }
  }
  std::ranges::stable_sort(list, {}, [](const PageInfo& page) { return page.ref.group; });
  return list;
}

Acquired PrefixIndex::LeasePublished(block::ReservationId id, uint32_t from_token, uint32_t tokens,
                                     uint32_t slot) {
  const base::MutexLock lock(impl_->mutex);
  Acquired acquired;
  const auto found = impl_->FindReservation(id);
  if (!found.ok()) return acquired;
  Reservation& reservation = **found;
  const uint32_t block_tokens = reservation.space->shape.block_tokens;
  tokens = std::min(tokens, static_cast<uint32_t>(reservation.tokens.size()));
  const uint32_t first = (from_token + block_tokens - 1) / block_tokens;
  Lease lease{.session = reservation.session,
              .slot = slot,
              .space = reservation.space,
              .usable = reservation.usable,
              .from = first * block_tokens};
  RestorablePath path;
  uint32_t reach = lease.from;
  for (Node* parent = reach < tokens ? impl_->ParentOf(reservation, first) : nullptr;
       parent != nullptr && reach < tokens;) {
    const Slice block(reservation.view(), reach, std::min(tokens, reach + block_tokens));
    Node* const node = TakeInRam(*parent, block.view(), lease.usable, path);
    if (node == nullptr) break;
    reach += block.size();
    parent = node;
  }
  acquired.answer.matched_tokens = acquired.answer.restorable_tokens = reach;
  acquired.answer.kind = block::MatchKind::kPrefix;
  acquired.answer.ended_by = block::EndReason::kRequestEnded;
  Shorten(impl_->CutToQuota(lease, path, reach), block::ShortenReason::kLeaseQuota,
          block::kAllGroups, acquired.answer);
  CountTiers(path, acquired.answer);
  impl_->Grant(std::move(lease), path, {}, acquired);
  return acquired;
}

}  // namespace prefixd::index
