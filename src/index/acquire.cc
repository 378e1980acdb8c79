// Acquire, Extend, Join, LeasePublished: who may take hold of which pages.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "index/impl.h"

namespace prefixd::index {
namespace {

absl::Status CannotExtend(block::LeaseId id, const std::string& why) {
  return absl::NotFoundError(absl::StrCat("extend: lease ", id.value, ": ", why));
}

// Returns the pages by which `lease` holds the block that begins at `first_token`, as a path of one
// block; empty if the lease does not hold the block.
RestorablePath HeldBlock(const Lease& lease, uint32_t first_token) {
  RestorablePath path;
  const auto end =
      std::partition_point(lease.pages.begin(), lease.pages.end(),
                           [&](const HeldPage& held) { return held.first_token <= first_token; });
  const auto groups = static_cast<std::ptrdiff_t>(lease.usable.groups.size());
  if (end - lease.pages.begin() < groups || (end - 1)->first_token != first_token) return path;
  path.blocks.push_back((end - 1)->node);
  for (const Usable::Group& group : lease.usable.groups) {
    // If several extensions took a page of the group, the last one counts.
    auto held = end;
    while (held != lease.pages.begin() && (held - 1)->first_token == first_token) {
      --held;
      if (held->group == group.group) break;
    }
    path.pages.push_back(FindPage(*held->node, held->group, held->rung));
  }
  return path;
}

// The tokens that the lease covers of its last, partial block, followed by `more`.
struct Tail {
  std::vector<block::Token> tokens;
  std::vector<block::ContentKey> content;
  block::SequenceView view() const { return {tokens, content}; }
};
Tail TailOf(const block::SequenceView& covered, const block::SequenceView& more) {
  Tail tail;
  const auto count = static_cast<uint32_t>(covered.tokens.size());
  tail.tokens.reserve(count + more.tokens.size());
  tail.tokens.assign(covered.tokens.begin(), covered.tokens.end());
  tail.tokens.insert(tail.tokens.end(), more.tokens.begin(), more.tokens.end());
  tail.content = block::CutContent(covered.content, 0, count);
  for (block::ContentKey key : more.content) {
    key.start += count;
    if (!tail.content.empty()) {
      block::ContentKey& last = tail.content.back();
      // One content has one spelling: an item that goes on is one key.
      if (last.start + last.length == key.start && last.digest == key.digest &&
          last.item_offset + last.length == key.item_offset) {
        last.length += key.length;
        continue;
      }
    }
    tail.content.push_back(key);
  }
  return tail;
}

// Returns the pages of a lease, block by block, that a session with `usable` can join. Shortens the
// answer, with the reason, if they end before the lease does.
RestorablePath Joinable(const Lease& lease, const Usable& usable, block::MatchAnswer& answer) {
  RestorablePath path;
  for (auto run = lease.pages.begin(); run != lease.pages.end();) {
    const uint32_t first_token = run->first_token;
    const auto end = std::find_if(run, lease.pages.end(), [&](const HeldPage& held) {
      return held.first_token != first_token;
    });
    std::vector<Page*> pages;
    for (const Usable::Group& group : usable.groups) {
      Page* page = nullptr;
      for (auto it = run; it != end; ++it) {
        if (it->group == group.group) page = FindPage(*it->node, it->group, it->rung);
      }
      const bool readable = page != nullptr && (group.rungs >> page->rung() & 1) != 0;
      if (!readable || !Present(*page)) {
        Shorten(first_token,
                readable ? block::ShortenReason::kEvicted : block::ShortenReason::kFormat,
                group.group, answer);
        return path;
      }
      pages.push_back(page);
    }
    path.blocks.push_back((end - 1)->node);
    path.pages.insert(path.pages.end(), pages.begin(), pages.end());
    run = end;
  }
  return path;
}

// Does the same for a lease with sliding or state groups. Their pages are of use only at the
// lease's end, so it is all or nothing.
RestorablePath JoinableMixed(const Lease& lease, const Usable& usable, block::MatchAnswer& answer) {
  RestorablePath path;
  for (const HeldPage& held : lease.pages) {
    const auto group = std::ranges::find(usable.groups, held.group, &Usable::Group::group);
    if (group == usable.groups.end()) continue;
    Page* const page = FindPage(*held.node, held.group, held.rung);
    const bool readable = group->state() || (group->rungs >> held.rung & 1) != 0;
    if (!readable || !Present(*page)) {
      Shorten(0, readable ? block::ShortenReason::kEvicted : block::ShortenReason::kFormat,
              held.group, answer);
      return {};
    }
    if (path.blocks.empty() || path.blocks.back() != held.node) {
      path.blocks.push_back(held.node);
      path.pages.resize(path.pages.size() + usable.groups.size());
    }
    const auto in_block = static_cast<size_t>(group - usable.groups.begin());
    path.pages[path.pages.size() - usable.groups.size() + in_block] = page;
  }
  return path;
}

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

size_t BlocksBefore(const RestorablePath& path, uint32_t tokens) {
  return static_cast<size_t>(
      std::partition_point(path.blocks.begin(), path.blocks.end(),
                           [&](const Node* node) { return node->first_token() < tokens; }) -
      path.blocks.begin());
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
  table.first_token = path.blocks.front()->first_token();
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
      if (i == 0 && HoldsAlready(lease, &node, page)) continue;
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
  lease.pages.reserve(lease.usable.regular ? path.pages.size() : 0);
  Hold(lease, path, lease.tokens);
  if (lease.pages.empty()) {  // only sliding groups are selected, and no page of them is there
    acquired.answer.restorable_tokens = 0;
    return;
  }
  acquired.from_token = lease.from;
  StampPath(lease.pages.back().node);
  List(path, lease.tokens, options, acquired);
  acquired.lease = AddLease(std::move(lease));
}

Acquired PrefixIndex::Acquire(block::SpaceHandle handle, const block::SequenceView& request,
                              const MatchOptions& options, block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  return impl_->Acquire(handle, request, options, session);
}

Acquired PrefixIndex::Impl::Acquire(block::SpaceHandle handle, const block::SequenceView& request,
                                    const MatchOptions& options, block::SessionId session) {
  Acquired acquired;
  Space* const space = FindSpace(handle);
  if (space == nullptr) return acquired;
  const Asked asked{&space->root, request};
  Lease lease{.session = session,
              .slot = options.slot,
              .space = space,
              .usable = UsableOf(space->shape, options.selection),
              .reads = options.reads,
              .pages = {}};
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

absl::StatusOr<Lease*> PrefixIndex::Impl::FindExtensible(block::LeaseId id, uint32_t tokens,
                                                         const MatchOptions& options,
                                                         block::SessionId session) {
  const auto it = leases.find(id);
  if (it == leases.end()) return CannotExtend(id, "unknown or released");
  Lease& lease = it->second;
  if (lease.session != session) return CannotExtend(id, "another session's");
  if (lease.tokens != tokens || lease.from != 0 || tokens == 0) {
    return CannotExtend(id, absl::StrCat("covers tokens ", lease.from, " to ", lease.tokens,
                                         ", the caller says ", tokens));
  }
  if (lease.usable != UsableOf(lease.space->shape, options.selection)) {
    return CannotExtend(id, "has other groups or formats");
  }
  if (!lease.usable.regular) {
    return CannotExtend(id, "has sliding or state groups, whose pages at its end do not go on");
  }
  if (lease.losses != losses) {
    const bool whole = std::all_of(lease.pages.begin(), lease.pages.end(), [](const auto& held) {
      return Present(*FindPage(*held.node, held.group, held.rung));
    });
    if (!whole) return CannotExtend(id, "a page of it is lost");
    lease.losses = losses;
  }
  return &lease;
}

void PrefixIndex::Impl::ExtendTo(Lease& lease, const RestorablePath& path, uint32_t tokens) {
  GiveUp(lease, tokens);
  table_bytes -= MemoryOf(lease);
  const size_t before = lease.pages.size();
  Hold(lease, path, tokens);
  lease.tokens = tokens;
  lease.extended = true;
  table_bytes += MemoryOf(lease);
  if (lease.pages.size() == before) return;
  Session& session = sessions[lease.session];
  for (size_t i = before; i < lease.pages.size(); ++i) {
    session.leased_bytes += lease.pages[i].charge;
  }
  // GiveUp stamps the pages that the lease held before.
  const HeldPage& last = lease.pages.back();
  StampPath(last.node, before == 0 ? nullptr : path.blocks.front()->parent());
}

absl::StatusOr<Acquired> PrefixIndex::Extend(block::LeaseId id, uint32_t tokens,
                                             const block::SequenceView& more,
                                             const MatchOptions& options,
                                             block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  if (absl::Status valid = block::ValidateContent(more); !valid.ok()) return valid;
  auto found = impl_->FindExtensible(id, tokens, options, session);
  if (!found.ok()) return found.status();
  Lease& lease = **found;
  const uint32_t block_tokens = lease.space->shape.block_tokens;
  const uint32_t offset = tokens / block_tokens * block_tokens;
  Node* from = &lease.space->root;
  if (offset > 0) from = HeldBlock(lease, offset - block_tokens).blocks.front();
  if (!from->in_tree) return CannotExtend(id, "its blocks left the tree");
  block::SequenceView covered;
  RestorablePath last;
  if (tokens > offset) {
    last = HeldBlock(lease, offset);
    covered = Head(last.blocks.front()->view(), tokens - offset);
  }
  const Tail tail = TailOf(covered, more);
  const Asked asked{from, tail.view()};
  const Walk walk = WalkDown(*from, block_tokens, asked.tail);
  RestorablePath path = FindRestorable(walk, block_tokens, asked.tail, lease.usable);
  if (offset + path.tokens < tokens) return CannotExtend(id, "its last block left the tree");

  Acquired acquired;
  acquired.lease = id;
  acquired.answer = impl_->Answer(asked, walk, lease.usable, options, session, path);
  uint32_t allowed = impl_->CutToQuota(lease, path, acquired.answer.restorable_tokens);
  if (allowed < tokens && allowed < acquired.answer.restorable_tokens) {
    allowed = tokens;  // the lease keeps what it has
    path = std::move(last);
    CountTiers(path, acquired.answer);
  }
  ShortenToQuota(allowed, asked, path, options, acquired.answer);
  const uint32_t covers = acquired.answer.restorable_tokens;
  impl_->ExtendTo(lease, path, covers);
  List(path, covers, options, acquired);
  return acquired;
}

absl::StatusOr<Acquired> PrefixIndex::Join(block::LeaseId id, const MatchOptions& options,
                                           block::SessionId session) {
  const base::MutexLock lock(impl_->mutex);
  const auto it = impl_->leases.find(id);
  if (it == impl_->leases.end()) {
    return absl::NotFoundError(absl::StrCat("join: lease ", id.value, ": unknown or released"));
  }
  const Lease& joined = it->second;
  Lease lease{.session = session,
              .slot = options.slot,
              .space = joined.space,
              .usable = {},
              .from = joined.from,
              .pages = {}};
  const Usable wanted = UsableOf(joined.space->shape, options.selection);
  lease.usable.has_mask = wanted.has_mask;
  for (const Usable::Group& group : wanted.groups) {
    const bool held = std::any_of(joined.usable.groups.begin(), joined.usable.groups.end(),
                                  [&](const auto& other) { return other.group == group.group; });
    if (held) {
      lease.usable.groups.push_back(group);
      if (!group.full()) lease.usable.regular = false;
    } else if (!options.selection.groups.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("join: lease ", id.value, " holds no page of group ", group.group));
    }
  }
  Acquired acquired;
  acquired.answer.matched_tokens = acquired.answer.restorable_tokens = joined.tokens;
  acquired.answer.kind = block::MatchKind::kExact;
  acquired.answer.ended_by = block::EndReason::kRequestEnded;
  const bool regular = lease.usable.regular;
  const RestorablePath path = regular ? Joinable(joined, lease.usable, acquired.answer)
                                      : JoinableMixed(joined, lease.usable, acquired.answer);
  const auto shorten = [&](uint32_t to, block::ShortenReason reason) {
    const bool nothing = !regular && to < acquired.answer.restorable_tokens;
    Shorten(nothing ? 0 : to, reason, block::kAllGroups, acquired.answer);
  };
  shorten(options.max_tokens, block::ShortenReason::kMaxTokens);
  shorten(impl_->CutToQuota(lease, path, acquired.answer.restorable_tokens),
          block::ShortenReason::kLeaseQuota);
  CountTiers(path, acquired.answer);
  impl_->Grant(std::move(lease), path, {}, acquired);
  return acquired;
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
              .from = first * block_tokens,
              .pages = {}};
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
