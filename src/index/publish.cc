// Publish: inserts pages and the ends of sequences into the tree.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/clock.h"
#include "index/impl.h"

namespace prefixd::index {
namespace {

bool Has(const Node& node, const NewPage& page) {
  const Page* const there = FindPage(node, page.group, page.rung);
  return there != nullptr && Present(*there);
}

// Returns a block that begins with these tokens and has each of these pages, or nullptr. Snapshots
// do not count: they can be added to it. If `pages` has no others, prefers a block with pages.
Node* Covering(const Node& parent, const block::SequenceView& tokens,
               std::span<const NewPage> pages) {
  Node* empty = nullptr;
  bool any = false;
  ByShared siblings(parent, tokens);
  while (const auto sibling = siblings.Next()) {
    if (sibling->shared < tokens.tokens.size()) break;
    Node& node = *sibling->node;
    const SpaceShape& shape = node.space()->shape;
    const bool all = std::all_of(pages.begin(), pages.end(), [&](const NewPage& page) {
      const bool state = shape.IsState(page.group);
      any |= !state;
      return state || Has(node, page);
    });
    if (all && (any || AnyPresent(node))) return &node;
    if (all && empty == nullptr) empty = &node;
  }
  return empty;
}

absl::Status CheckPages(Space& space, uint32_t tokens, bool may_be_empty,
                        std::span<const NewPage> pages) {
  const SpaceShape& shape = space.shape;
  if (pages.empty() && !may_be_empty) return absl::InvalidArgumentError("publish: no pages");
  for (size_t i = 0; i < pages.size(); ++i) {
    const NewPage& page = pages[i];
    if (!shape.Has(page.group, page.rung, tokens)) {
      return absl::InvalidArgumentError(absl::StrCat("publish: page of group ", page.group,
                                                     " rung ", page.rung,
                                                     ", which the space does not have"));
    }
    if (!page.extent) {
      return absl::InvalidArgumentError(
          absl::StrCat("publish: page of group ", page.group, " has no extent"));
    }
    if (!space.sizes.NumberOf({page.page_bytes, page.payload_bytes})) return TooManySizes();
    for (size_t j = 0; j < i; ++j) {
      if (pages[j].group == page.group && pages[j].rung == page.rung) {
        return absl::InvalidArgumentError(
            absl::StrCat("publish: two pages of group ", page.group, " rung ", page.rung));
      }
    }
  }
  return absl::OkStatus();
}

uint64_t SnapshotBytes(const SpaceShape& shape, std::span<const NewPage> pages) {
  uint64_t bytes = 0;
  for (const NewPage& page : pages) {
    if (shape.IsState(page.group)) bytes += page.extent.bytes;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Reservation*> PrefixIndex::Impl::FindReservation(block::ReservationId id) {
  const auto it = reservations.find(id);
  if (it == reservations.end()) {
    return absl::NotFoundError(absl::StrCat("reservation ", id.value, ": unknown or closed"));
  }
  if (it->second->space == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("reservation ", id.value, ": its space was cleared"));
  }
  return it->second.get();
}

void PrefixIndex::Impl::AddPages(Node& node, std::span<const NewPage> pages) {
  const Change change(*this, node);
  const int64_t now = base::SystemClock::Get().UnixMicros();
  if (!AnyPresent(node)) node.touches = 0;
  node.refused = false;
  for (const NewPage& page : pages) {
    if (Has(node, page)) {
      Free(page.extent);
      continue;
    }
    Page& slot = SlotFor(node, page.group, page.rung);
    slot.set_state(PageState::kRam);
    slot.set_extent(page.extent);
    slot.check = page.check;
    slot.set_sizes(*node.space()->sizes.NumberOf({page.page_bytes, page.payload_bytes}));
    slot.Use().marks = page.marks;
    WriteMarks(node, slot, now);
  }
  SetStamp(node, NewStamp());
}

std::vector<NewPage> PrefixIndex::Impl::RefuseSnapshots(const SpaceShape& shape,
                                                        std::span<const NewPage> pages) {
  std::vector<NewPage> others;
  for (const NewPage& page : pages) {
    if (shape.IsState(page.group)) {
      Free(page.extent);
      ++refused_snapshots;
    } else {
      others.push_back(page);
    }
  }
  return others;
}

bool PrefixIndex::Impl::WantsFull(const Reservation& reservation, uint32_t block_index) const {
  return std::ranges::any_of(reservation.usable.groups, [&](const Usable::Group& group) {
    return group.full() && reservation.blocks[block_index].rungs[group.group] != block::kNoLimit;
  });
}

block::StoreResult PrefixIndex::Impl::Store(Reservation& reservation, uint32_t block_index,
                                            Node& parent, std::span<const NewPage> pages,
                                            uint64_t serial) {
  const block::BlockPlan& plan = reservation.blocks[block_index];
  const Slice tokens(reservation.view(), plan.first_token, plan.first_token + plan.tokens);
  Node* const covering = Covering(parent, tokens.view(), pages);
  Node* node = ExactChild(parent, tokens.view());
  bool duplicate = covering != nullptr;
  if (!duplicate) {
    if (node == nullptr && MemoryBytes() + by_serial.GrowthBytes() >= limits.memory_limit_bytes) {
      for (const NewPage& page : pages) Free(page.extent);
      return block::StoreResult::kRefused;
    }
    if (node == nullptr) {
      node = InsertChild(parent, tokens.view(), Hash(parent.hash, tokens.view()), serial,
                         pages.size());
    } else if (!AnyPresent(*node)) {
      node->was_ghost = true;  // a hole was given up and is stored again
    }
    AddPages(*node, pages);
    SupersedePrefixes(*node);
  } else {
    std::vector<NewPage> snapshots;
    for (const NewPage& page : pages) {
      const bool state = reservation.space->shape.IsState(page.group);
      const bool fresh = state && !Has(*covering, page);
      if (fresh) {
        snapshots.push_back(page);
      } else {
        Free(page.extent);
      }
    }
    if (!snapshots.empty()) AddPages(*covering, snapshots);
    duplicate = snapshots.empty();
  }
  reservation.states[block_index] = PlanState::kPublished;
  if (node != nullptr && plan.tokens == reservation.space->shape.block_tokens) {
    if (block_index >= reservation.hold_blocks) MoveHold(reservation, node, block_index + 1);
  } else if (node != nullptr && reservation.tail == nullptr) {
    const Change change(*this, *node);
    ++node->rare().holds;
    ++node->pins;
    reservation.tail = node;
  }
  return duplicate ? block::StoreResult::kDuplicate : block::StoreResult::kStored;
}

absl::StatusOr<Node*> PrefixIndex::Impl::ParentFor(Reservation& reservation, uint32_t block_index) {
  if (block_index >= reservation.blocks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("publish: block ", block_index, ", the plan has ", reservation.blocks.size()));
  }
  Node* const parent = ParentOf(reservation, block_index);
  const bool stored =
      parent != nullptr && (block_index == 0 || AnyPresent(*parent) ||
                            reservation.states[block_index - 1] != PlanState::kMissing);
  if (stored) return parent;
  return absl::FailedPreconditionError(absl::StrCat(
      "publish: block ", block_index, " before block ", block_index - 1, ", its parent"));
}

bool PrefixIndex::Impl::Stand(const Reservation& reservation, uint32_t block_index, Node& parent,
                              const Serials& serials) const {
  if (parent.serial() != serials.parent) return false;
  const block::BlockPlan& plan = reservation.blocks[block_index];
  if (serials.own == 0) return plan.tokens < reservation.space->shape.block_tokens;
  const Slice tokens(reservation.view(), plan.first_token, plan.first_token + plan.tokens);
  const Node* const node = ExactChild(parent, tokens.view());
  if (node != nullptr) return node->serial() == serials.own;
  return FindSerial(serials.own) == nullptr;
}

absl::StatusOr<Serials> PrefixIndex::SerialsFor(block::ReservationId id, uint32_t block_index) {
  const base::MutexLock lock(impl_->mutex);
  auto found = impl_->FindReservation(id);
  if (!found.ok()) return found.status();
  Reservation& reservation = **found;
  auto parent = impl_->ParentFor(reservation, block_index);
  if (!parent.ok()) return parent.status();
  Serials serials{.parent = (*parent)->serial()};
  const block::BlockPlan& plan = reservation.blocks[block_index];
  if (plan.tokens < reservation.space->shape.block_tokens) return serials;
  const Slice tokens(reservation.view(), plan.first_token, plan.first_token + plan.tokens);
  const Node* const node = ExactChild(**parent, tokens.view());
  serials.own = node != nullptr ? node->serial() : impl_->NewSerial();
  return serials;
}

absl::StatusOr<block::StoreResult> PrefixIndex::Publish(block::ReservationId id,
                                                        uint32_t block_index,
                                                        std::span<const NewPage> pages,
                                                        const std::optional<Serials>& serials) {
  const base::MutexLock lock(impl_->mutex);
  auto found = impl_->FindReservation(id);
  if (!found.ok()) return found.status();
  Reservation& reservation = **found;
  auto found_parent = impl_->ParentFor(reservation, block_index);
  if (!found_parent.ok()) return found_parent.status();
  if (absl::Status valid = CheckPages(*reservation.space, reservation.blocks[block_index].tokens,
                                      !impl_->WantsFull(reservation, block_index), pages);
      !valid.ok()) {
    return valid;
  }
  const bool snapshots_fit =
      impl_->MakeSnapshotRoom(SnapshotBytes(reservation.space->shape, pages));
  // Making room may have changed the tree.
  auto parent = impl_->ParentFor(reservation, block_index);
  if (!parent.ok()) return parent.status();
  if (serials.has_value() && !impl_->Stand(reservation, block_index, **parent, *serials)) {
    return absl::AbortedError(absl::StrCat("publish: block ", block_index, " has other serials"));
  }
  const uint64_t own = serials.has_value() ? serials->own : 0;
  if (snapshots_fit) return impl_->Store(reservation, block_index, **parent, pages, own);
  const std::vector<NewPage> others = impl_->RefuseSnapshots(reservation.space->shape, pages);
  return impl_->Store(reservation, block_index, **parent, others, own);
}

absl::StatusOr<Node*> PrefixIndex::Impl::StoredUpTo(Reservation& reservation, uint32_t tokens) {
  const uint32_t block_tokens = reservation.space->shape.block_tokens;
  const uint32_t last = (tokens - 1) / block_tokens;
  Node* const parent = ParentOf(reservation, last);
  const auto missing = [&](uint32_t block) {
    return absl::FailedPreconditionError(
        absl::StrCat("end: at ", tokens, " tokens, but block ", block, " is not stored"));
  };
  if (parent == nullptr) return missing(last);
  const Node* node = parent;
  for (uint32_t block = last; block-- > 0; node = node->parent()) {
    if (!AnyPresent(*node) && reservation.states[block] == PlanState::kMissing) {
      return missing(block);
    }
  }
  const Slice slice(reservation.view(), last * block_tokens, tokens);
  Node* const first = FirstExtending(*parent, slice.view());
  if (first == nullptr) return missing(last);
  if (reservation.states[last] != PlanState::kMissing) return first;
  for (auto it = parent->children().find(first); it != parent->children().end(); ++it) {
    if (block::CommonPrefix((*it)->view(), slice.view()) < slice.size()) break;
    if (AnyPresent(**it)) return first;
  }
  return missing(last);
}

absl::Status PrefixIndex::AddEnd(block::ReservationId id, uint32_t tokens) {
  const base::MutexLock lock(impl_->mutex);
  auto found = impl_->FindReservation(id);
  if (!found.ok()) return found.status();
  Reservation& reservation = **found;
  if (tokens == 0 || tokens > reservation.tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("end: at ", tokens, " tokens of ", reservation.tokens.size()));
  }
  auto first = impl_->StoredUpTo(reservation, tokens);
  if (!first.ok()) return first.status();
  impl_->SetEnd(**first, (tokens - 1) % reservation.space->shape.block_tokens + 1);
  return absl::OkStatus();
}

}  // namespace prefixd::index
