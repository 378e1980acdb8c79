// Events: what changes is noted in a log, from the first listener on, and read from there. Nobody
// who stores or reads waits for a listener.
#include <algorithm>
#include <utility>

#include "index/impl.h"
#include "index/stored_state.h"

namespace prefixd::index {
namespace {

block::StoredBlock Names(const EventLog::Entry& entry) {
  return {.space = entry.space,
          .hash = entry.hash,
          .parent = entry.parent,
          .first_token = entry.first_token,
          .tokens = entry.tokens,
          .state = entry.state};
}

void AddTokens(const Node& node, block::StoredBlock* block) {
  block->token_ids.assign(node.tokens().begin(), node.tokens().end());
  block->content.assign(node.content().begin(), node.content().end());
}

block::EventKind KindOf(const block::StoredState& before, const block::StoredState& after) {
  if (!before.stored) return block::EventKind::kStored;
  return after.stored ? block::EventKind::kChanged : block::EventKind::kRemoved;
}

}  // namespace

void PrefixIndex::Impl::NoteChange(const Node& node, const block::StoredState& before) {
  const block::StoredState after = StateOf(node);
  if (after == before) return;
  const Node* const parent = node.parent();
  events.Add({.kind = KindOf(before, after),
              .node_id = node.id(),
              .space = node.space()->shape.id,
              .hash = node.hash,
              .parent = parent == nullptr ? block::BlockHash{} : parent->hash,
              .first_token = node.first_token(),
              .tokens = node.size(),
              .state = after,
              .tiers_before = before.tiers});
}

void PrefixIndex::Impl::NoteCleared(const Space& space) {
  if (!events.recording()) return;
  EventLog::Entry entry;
  entry.kind = block::EventKind::kCleared;
  entry.space = space.shape.id;
  events.Add(entry);
}

uint64_t PrefixIndex::RecordEvents() {
  const base::MutexLock lock(impl_->mutex);
  impl_->events.Begin();
  return impl_->events.last();
}

uint64_t PrefixIndex::LastEvent() const { return impl_->last_event.load(); }

bool PrefixIndex::HasEventsAfter(uint64_t sequence) const {
  const base::MutexLock lock(impl_->mutex);
  return impl_->events.HasAfter(sequence);
}

std::optional<EventsRead> PrefixIndex::ReadEvents(uint64_t after, uint32_t most,
                                                  const block::EventQuery& query) const {
  const base::MutexLock lock(impl_->mutex);
  if (!impl_->events.HasAfter(after)) return std::nullopt;
  EventsRead read{.events = {},
                  .last = std::min(impl_->events.last(), after + most),
                  .loading = impl_->loading};
  for (uint64_t sequence = after + 1; sequence <= read.last; ++sequence) {
    const EventLog::Entry& entry = impl_->events.At(sequence);
    if (query.space.has_value() && entry.space != *query.space) continue;
    block::BlockEvent event{
        .kind = entry.kind, .block = Names(entry), .tiers_before = entry.tiers_before};
    const bool stays = entry.state.stored && query.with_tokens;
    const Node* const node = stays ? impl_->nodes.Find(entry.node_id) : nullptr;
    if (node != nullptr) AddTokens(*node, &event.block);
    read.events.push_back(std::move(event));
  }
  return read;
}

std::vector<uint64_t> PrefixIndex::ListStored(const std::optional<block::SpaceId>& space) const {
  struct Found {
    uint32_t first_token;
    uint64_t id;
  };
  std::vector<Found> found;
  impl_->ForEachInSteps([&](const Node& node) {
    if (!node.in_tree || (space.has_value() && node.space()->shape.id != *space)) return;
    found.push_back({node.first_token(), node.id()});
  });
  std::ranges::stable_sort(found, {}, &Found::first_token);
  std::vector<uint64_t> ids(found.size());
  std::ranges::transform(found, ids.begin(), &Found::id);
  return ids;
}

StoredRead PrefixIndex::ReadStored(std::span<const uint64_t> ids, bool with_tokens) const {
  const base::MutexLock lock(impl_->mutex);
  StoredRead read{.blocks = {}, .sequence = impl_->events.last()};
  for (const uint64_t id : ids) {
    const Node* const node = impl_->nodes.Find(id);
    if (node == nullptr) continue;
    const block::StoredState state = StateOf(*node);
    if (!state.stored) continue;
    block::StoredBlock block{.space = node->space()->shape.id,
                             .hash = node->hash,
                             .parent = node->parent()->hash,
                             .first_token = node->first_token(),
                             .tokens = node->size(),
                             .state = state};
    if (with_tokens) AddTokens(*node, &block);
    read.blocks.push_back(std::move(block));
  }
  return read;
}

}  // namespace prefixd::index
