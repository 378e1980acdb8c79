#include "client/llama/slot_table.h"

#include <algorithm>
#include <utility>

namespace prefixd::llama {

uint32_t CommonPrefix(std::span<const uint32_t> a, std::span<const uint32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<uint32_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first -
      a.begin());
}

SlotTable::Held::Held(Held&& other) noexcept
    : table_(std::exchange(other.table_, nullptr)),
      place_(other.place_),
      tokens_(std::move(other.tokens_)) {}

SlotTable::Held::~Held() {
  if (table_ != nullptr) table_->GiveBack(this);
}

void SlotTable::SetSlots(size_t server, uint32_t slots) {
  base::MutexLock lock(mutex_);
  std::vector<Slot> kept;
  for (Slot& slot : slots_) {
    if (slot.place.server != server) {
      kept.push_back(std::move(slot));
    } else if (slot.held && static_cast<uint32_t>(slot.place.slot) < slots) {
      kept.push_back({.place = slot.place, .held = true, .used = slot.used, .tokens = {}});
    }
  }
  for (uint32_t id = 0; id < slots; ++id) {
    const Place place{.server = server, .slot = static_cast<int>(id)};
    const auto same = [&](const Slot& slot) {
      return slot.place.server == server && slot.place.slot == place.slot;
    };
    if (std::none_of(kept.begin(), kept.end(), same)) {
      kept.push_back({.place = place, .held = false, .used = 0, .tokens = {}});
    }
  }
  slots_ = std::move(kept);
  free_.NotifyAll();
}

SlotTable::Slot* SlotTable::Best(std::span<const uint32_t> tokens) {
  Slot* best = nullptr;
  uint32_t best_prefix = 0;
  for (Slot& slot : slots_) {
    if (slot.held) continue;
    const uint32_t prefix = CommonPrefix(slot.tokens, tokens);
    if (best == nullptr || prefix > best_prefix ||
        (prefix == best_prefix && slot.used < best->used)) {
      best = &slot;
      best_prefix = prefix;
    }
  }
  return best;
}

SlotTable::Slot* SlotTable::BestInTurn(uint64_t turn, std::span<const uint32_t> tokens,
                                       std::chrono::steady_clock::time_point deadline) {
  bool in_time = true;
  while (true) {
    Slot* slot = *waiting_.begin() == turn ? Best(tokens) : nullptr;
    if (slot != nullptr || !in_time) return slot;
    in_time = free_.WaitUntil(mutex_, deadline);
  }
}

std::optional<SlotTable::Held> SlotTable::Take(std::span<const uint32_t> tokens,
                                               std::chrono::steady_clock::time_point deadline) {
  base::MutexLock lock(mutex_);
  const uint64_t turn = next_turn_++;
  waiting_.insert(turn);
  Slot* slot = BestInTurn(turn, tokens, deadline);
  waiting_.erase(turn);
  free_.NotifyAll();  // the next one's turn
  if (slot == nullptr) return std::nullopt;
  slot->held = true;
  return Held(this, slot->place, slot->tokens);
}

size_t SlotTable::Waiting() const {
  base::MutexLock lock(mutex_);
  return waiting_.size();
}

void SlotTable::GiveBack(Held* held) {
  base::MutexLock lock(mutex_);
  for (Slot& slot : slots_) {
    if (slot.place.server != held->place_.server || slot.place.slot != held->place_.slot) continue;
    slot.held = false;
    slot.used = ++clock_;
    slot.tokens = std::move(held->tokens_);
  }
  free_.NotifyAll();
}

std::pair<size_t, size_t> SlotTable::Use() const {
  base::MutexLock lock(mutex_);
  const auto held =
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.held; });
  return {static_cast<size_t>(held), slots_.size()};
}

}  // namespace prefixd::llama
