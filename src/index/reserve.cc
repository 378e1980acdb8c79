// Reserve: which blocks are missing, who announced them, which must not leave the tree meanwhile.
#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

#include "base/steps.h"
#include "index/impl.h"
#include "index/snapshots.h"

namespace prefixd::index {
namespace {

constexpr uint64_t kReservedBytesPerToken = 8;  // its id and its share of a block's plan and hash

uint64_t MemoryOf(const Reservation& reservation) {
  return sizeof(Reservation) + 64 + reservation.tokens.size() * sizeof(block::Token) +
         reservation.content.size() * sizeof(block::ContentKey) +
         reservation.blocks.size() * (sizeof(block::BlockPlan) + sizeof(uint64_t) +
                                      reservation.usable.groups.size() * sizeof(uint32_t) + 1);
}

// Returns a single node that holds all tokens of the block and serves every selected full group, or
// nullptr. If no full group is selected, any node with the tokens does.
const Node* Serving(const Node& parent, const Slice& tokens, const Usable& full) {
  ByShared siblings(parent, tokens.view());
  while (const auto sibling = siblings.Next()) {
    if (sibling->shared < tokens.size()) return nullptr;
    if (full.groups.empty() || Serves(*sibling->node, full)) return sibling->node;
  }
  return nullptr;
}

// The ends that a writer names. Passes over them once while the caller goes through the blocks.
class NextEnd {
 public:
  // Requires: `ends` ascend, and the last is the sequence's own.
  explicit NextEnd(std::span<const uint32_t> ends) : ends_(ends) {}
  // Returns the first end behind `token`. Requires: `token` never falls and is below the last end.
  uint32_t Behind(uint32_t token) {
    while (ends_[next_] <= token) {
      base::CountSteps();
      ++next_;
    }
    return ends_[next_];
  }

 private:
  const std::span<const uint32_t> ends_;
  size_t next_ = 0;
};

// Returns whether `end`, the first end behind the block's first token, needs the group's page of
// the block: the page holds sinks or is in the window before `end`. If this end does not, no later
// one does.
bool IsNeeded(const GroupRule& rule, const block::BlockPlan& plan, uint32_t end) {
  base::CountSteps();
  return plan.first_token < rule.sink_tokens ||
         uint64_t{plan.first_token} + plan.tokens + rule.window > end;
}

// Plans the sliding pages that a block served by `node` still lacks. Plans none if `node` is longer
// than the block: it cannot be given any. Returns whether it planned a page.
bool WantWindows(const Node& node, const Usable& usable, uint32_t end, block::BlockPlan& plan) {
  bool any = false;
  for (const Usable::Group& group : usable.groups) {
    if (group.full() || group.state() || node.size() > plan.tokens) continue;
    if (BestPage(node, group) != nullptr || !IsNeeded(group.rule, plan, end)) continue;
    plan.rungs[group.group] = static_cast<uint32_t>(std::countr_zero(group.rungs));
    any = true;
  }
  return any;
}

// A reservation of another session and how many tokens it shares with the sequence. Has() returns
// whether it is going to write a block whole, in usable rungs of all groups that `plan` wants.
struct Announced {
  const Reservation* reservation;
  uint32_t shared;

  bool Has(const block::BlockPlan& plan, const Usable& usable, size_t index) const {
    if (plan.first_token + plan.tokens > shared || index >= reservation->blocks.size())
      return false;
    const block::BlockPlan& other = reservation->blocks[index];
    if (reservation->states[index] != PlanState::kMissing ||
        other.state != block::BlockState::kYours) {
      return false;
    }
    return std::all_of(usable.groups.begin(), usable.groups.end(), [&](const Usable::Group& group) {
      const uint32_t rung = other.rungs[group.group];
      return plan.rungs[group.group] == block::kNoLimit ||
             (rung != block::kNoLimit && (group.rungs >> rung & 1) != 0);
    });
  }
};

// Returns the finest of the rungs, or the one `coarser` steps coarser; the coarsest if there are
// fewer.
uint32_t RungOf(uint64_t rungs, uint32_t coarser) {
  for (; coarser > 0 && (rungs & (rungs - 1)) != 0; --coarser) rungs &= rungs - 1;
  return static_cast<uint32_t>(std::countr_zero(rungs));
}

void WantRungs(const Node* exact, const Usable& usable, uint32_t coarser, block::BlockPlan& plan) {
  for (const Usable::Group& group : usable.groups) {
    if (group.state()) continue;
    if (exact != nullptr && BestPage(*exact, group) != nullptr) continue;
    plan.rungs[group.group] = RungOf(group.rungs, coarser);
  }
}

// Sorts the ends below `size`, each once, and adds the sequence's own end.
SnapshotWish InOrder(const SnapshotWish& wish, uint32_t size) {
  SnapshotWish sorted = wish;
  std::vector<uint32_t>& ends = sorted.turn_ends;
  std::erase_if(ends, [&](uint32_t end) { return end >= size; });
  ends.push_back(size);
  std::ranges::sort(ends);
  const auto again = std::ranges::unique(ends);
  ends.erase(again.begin(), again.end());
  return sorted;
}

absl::Status CheckSequence(const block::SequenceView& sequence) {
  if (sequence.tokens.empty()) return absl::InvalidArgumentError("reserve: sequence is empty");
  if (sequence.tokens.size() > block::kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("reserve: sequence has ", sequence.tokens.size(),
                                                   " tokens, limit ", block::kMaxTokens));
  }
  return block::ValidateContent(sequence);
}

absl::Status CheckUsable(const Usable& usable) {
  for (const Usable::Group& group : usable.groups) {
    if (group.rungs != 0 || group.state()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("reserve: no usable rung in group ", group.group));
  }
  if (!usable.groups.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("reserve: no group of the space is selected");
}

// Fills `blocks` with the blocks of the sequence; their states and rungs are not known yet.
void CutIntoBlocks(Reservation& reservation) {
  const auto size = static_cast<uint32_t>(reservation.tokens.size());
  for (uint32_t first = 0; first < size; first += reservation.block_tokens) {
    block::BlockPlan& plan = reservation.blocks.emplace_back();
    plan.first_token = first;
    plan.tokens = std::min(reservation.block_tokens, size - first);
    plan.rungs.assign(reservation.groups, block::kNoLimit);
  }
  reservation.states.reserve(reservation.blocks.size());
}

// Fills names and hashes. On entry `names` has the root's and those of the blocks in the tree.
void NameBlocks(const block::BlockHasher& hasher, const block::SequenceView& sequence,
                Reserved& reserved) {
  for (size_t i = reserved.names.size() - 1; i < reserved.plan.blocks.size(); ++i) {
    const block::BlockPlan& plan = reserved.plan.blocks[i];
    const Slice tokens(sequence, plan.first_token, plan.first_token + plan.tokens);
    const block::BlockHash parent = reserved.names.back().hash;
    reserved.names.push_back({.hash = hasher.Hash(parent, tokens.view()), .parent = parent});
  }
  reserved.names.erase(reserved.names.begin());
  reserved.names.resize(reserved.plan.blocks.size());
  for (const BlockName& name : reserved.names) reserved.hashes.push_back(name.hash);
}

}  // namespace

void PrefixIndex::Impl::PlanBlocks(const Walk& walk, block::SessionId session, uint32_t coarser,
                                   const SnapshotWish& wish, Reservation& reservation) const {
  const Space& space = *reservation.space;
  const block::SequenceView sequence = reservation.view();
  std::vector<Announced> announced;
  for (const auto& [id, other] : reservations) {
    if (other->space != &space || other->session == session) continue;
    const uint32_t shared = block::CommonPrefix(sequence, other->view());
    if (shared > 0) announced.push_back({other.get(), shared});
  }
  const Usable full = OnlyFull(reservation.usable);
  NextEnd ends(wish.turn_ends);
  for (size_t index = 0; index < reservation.blocks.size(); ++index) {
    base::CountSteps();
    block::BlockPlan& plan = reservation.blocks[index];
    const uint32_t first = plan.first_token;
    const Slice tokens(sequence, first, first + plan.tokens);
    Node* const parent = index == 0                     ? &reservation.space->root
                         : index - 1 < walk.path.size() ? walk.path[index - 1]
                                                        : nullptr;
    const Node* const serving = parent == nullptr ? nullptr : Serving(*parent, tokens, full);
    const bool windows =
        serving != nullptr && WantWindows(*serving, reservation.usable, ends.Behind(first), plan);
    if (serving != nullptr && !windows) {
      plan.state = block::BlockState::kPresent;
    } else {
      // A block that begins with stored tokens is not planned coarser: they keep their rung.
      if (serving == nullptr) {
        WantRungs(parent == nullptr ? nullptr : ExactChild(*parent, tokens.view()),
                  reservation.usable, first < walk.matched() ? 0 : coarser, plan);
      }
      const bool pending = std::any_of(
          announced.begin(), announced.end(),
          [&](const Announced& other) { return other.Has(plan, reservation.usable, index); });
      plan.state = pending ? block::BlockState::kPending : block::BlockState::kYours;
    }
    reservation.states.push_back(plan.state == block::BlockState::kPresent ? PlanState::kPresent
                                                                           : PlanState::kMissing);
  }
}

uint64_t PrefixIndex::ReservedBytes(size_t tokens) { return tokens * kReservedBytesPerToken; }

absl::Status PrefixIndex::Impl::CheckReserve(const Space* space, block::SpaceHandle handle,
                                             size_t tokens) const {
  if (space == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("reserve: unknown space ", handle.value));
  }
  // Reservations (tokens, hashes, plans), leases and pins may take half of the limit; the other
  // half is for the tree.
  const uint64_t wants = tokens * kReservedBytesPerToken;
  if (table_bytes + wants <= limits.memory_limit_bytes / 2) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "reserve: ", tokens, " tokens take ", wants, " bytes, leases and reservations hold ",
      table_bytes, " of ", limits.memory_limit_bytes / 2));
}

// As far as possible, does work in proportion to the request's length outside the lock.
absl::StatusOr<Reserved> PrefixIndex::Reserve(block::SpaceHandle handle,
                                              const block::SequenceView& sequence,
                                              const Selection& selection, block::SessionId session,
                                              const SnapshotWish& wish) {
  if (absl::Status valid = CheckSequence(sequence); !valid.ok()) return valid;
  const SnapshotWish ends = InOrder(wish, static_cast<uint32_t>(sequence.tokens.size()));
  auto reservation = std::make_unique<Reservation>();
  reservation->session = session;
  {
    const base::MutexLock lock(impl_->mutex);
    Space* const space = impl_->FindSpace(handle);
    absl::Status may = impl_->CheckReserve(space, handle, sequence.tokens.size());
    if (!may.ok()) return may;
    reservation->usable = UsableOf(space->shape, selection);
    reservation->block_tokens = space->shape.block_tokens;
    reservation->groups = space->shape.rungs.size();
  }
  if (absl::Status usable = CheckUsable(reservation->usable); !usable.ok()) return usable;
  reservation->tokens.assign(sequence.tokens.begin(), sequence.tokens.end());
  reservation->content.assign(sequence.content.begin(), sequence.content.end());
  CutIntoBlocks(*reservation);
  Reserved reserved;
  {
    const base::MutexLock lock(impl_->mutex);
    Space* const space = impl_->FindSpace(handle);
    absl::Status may = impl_->CheckReserve(space, handle, sequence.tokens.size());
    if (!may.ok()) return may;
    reservation->space = space;
    const Walk walk = WalkDown(space->root, space->shape.block_tokens, sequence);
    impl_->PlanBlocks(walk, session, selection.coarser, ends, *reservation);
    reserved.plan.snapshot_tokens = PlanSnapshots(walk, *reservation, ends);
    reserved.names.reserve(reservation->blocks.size());
    reserved.names.push_back({.hash = space->root.hash});
    for (const Node* const node : walk.path) {
      reserved.names.push_back({.hash = node->hash, .parent = reserved.names.back().hash});
    }
    impl_->StampPath(walk.last);
    if (!walk.path.empty()) {
      impl_->MoveHold(*reservation, walk.last, static_cast<uint32_t>(walk.path.size()));
    }
    reserved.plan.reservation = block::ReservationId{impl_->next_id++};
    reserved.plan.blocks = reservation->blocks;
    impl_->table_bytes += MemoryOf(*reservation);
    impl_->reservations.emplace(reserved.plan.reservation, std::move(reservation));
  }
  NameBlocks(impl_->options.hasher, sequence, reserved);
  return reserved;
}

void PrefixIndex::Impl::MoveHold(Reservation& reservation, Node* to, uint32_t blocks) {
  Node* const from = reservation.hold;
  if (to != nullptr) {
    const Change change(*this, *to);
    ++to->rare().holds;
    ++to->pins;
  }
  reservation.hold = to;
  reservation.hold_blocks = blocks;
  if (from == nullptr) return;
  DropHold(*from);
}

void PrefixIndex::Impl::DropHold(Node& node) {
  {
    const Change change(*this, node);
    --node.rare().holds;
    --node.pins;
  }
  Settle(&node);
}

void PrefixIndex::Impl::DropHolds(Reservation& reservation) {
  MoveHold(reservation, nullptr, 0);
  if (Node* const tail = std::exchange(reservation.tail, nullptr); tail != nullptr) {
    DropHold(*tail);
  }
}

absl::Status PrefixIndex::Impl::EndReservation(block::ReservationId id) {
  const auto it = reservations.find(id);
  if (it == reservations.end()) {
    return absl::NotFoundError(absl::StrCat("reservation ", id.value, ": unknown or closed"));
  }
  Reservation& reservation = *it->second;
  // Blocks that were just written count as just used.
  const bool has_tail = reservation.tail != nullptr && reservation.tail->in_tree;
  Node* const leaf = has_tail ? reservation.tail : reservation.hold;
  StampPath(leaf);
  // Trims here because the ends are declared by now.
  if (leaf != nullptr && !leaf->space()->regular) TrimChain(*leaf);
  DropHolds(reservation);
  table_bytes -= MemoryOf(reservation);
  reservations.erase(it);
  return absl::OkStatus();
}

absl::Status PrefixIndex::CloseReservation(block::ReservationId reservation) {
  const base::MutexLock lock(impl_->mutex);
  return impl_->EndReservation(reservation);
}

Node* PrefixIndex::Impl::ParentOf(Reservation& reservation, uint32_t block_index) {
  Node* node = reservation.hold != nullptr ? reservation.hold : &reservation.space->root;
  uint32_t at = reservation.hold_blocks;
  for (; at > block_index; --at) node = node->parent();
  const uint32_t block_tokens = reservation.space->shape.block_tokens;
  for (; at < block_index && node != nullptr; ++at) {
    const Slice tokens(reservation.view(), at * block_tokens, (at + 1) * block_tokens);
    node = ExactChild(*node, tokens.view());
  }
  return node;
}

}  // namespace prefixd::index
