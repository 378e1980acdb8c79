// Which request has which slot of which server, and what is in the slots' caches.
//
// Thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/mutex.h"

namespace prefixd::llama {

// Returns how many tokens both begin with.
uint32_t CommonPrefix(std::span<const uint32_t> a, std::span<const uint32_t> b);

class SlotTable {
 public:
  struct Place {
    size_t server = 0;  // index
    int slot = 0;
  };
  // A slot that one request has for itself, until this is gone. Must not outlive the table.
  class Held {
   public:
    Held(Held&& other) noexcept;
    Held& operator=(Held&&) = delete;
    ~Held();
    const Place& place() const { return place_; }
    // What the slot's cache holds, as far as is known.
    const std::vector<uint32_t>& tokens() const { return tokens_; }
    void SetTokens(std::vector<uint32_t> tokens) { tokens_ = std::move(tokens); }

   private:
    friend class SlotTable;
    Held(SlotTable* table, Place place, std::vector<uint32_t> tokens)
        : table_(table), place_(place), tokens_(std::move(tokens)) {}
    SlotTable* table_;
    Place place_;
    std::vector<uint32_t> tokens_;
  };

  // Makes the slots of a server `slots` empty ones; 0 takes the server out. Slots that are held
  // stay held, and are forgotten when they come back if the server has fewer now.
  void SetSlots(size_t server, uint32_t slots) PREFIXD_EXCLUDES(mutex_);
  // Waits for its turn and for a free slot, at most until `deadline`, and takes the slot whose
  // cache has most of the beginning of `tokens`; among equal ones the one that was used least
  // recently. Requests that wait get slots in the order in which they came: a conversation that
  // asks again at once does not keep its slot from the others.
  std::optional<Held> Take(std::span<const uint32_t> tokens,
                           std::chrono::steady_clock::time_point deadline) PREFIXD_EXCLUDES(mutex_);
  // Returns how many requests wait.
  size_t Waiting() const PREFIXD_EXCLUDES(mutex_);
  // Returns how many slots are held, and how many there are.
  std::pair<size_t, size_t> Use() const PREFIXD_EXCLUDES(mutex_);

 private:
  struct Slot {
    Place place;
    bool held = false;
    uint64_t used = 0;  // clock_ when it was last given back
    std::vector<uint32_t> tokens;
  };
  Slot* Best(std::span<const uint32_t> tokens) PREFIXD_REQUIRES(mutex_);
  // Waits until request number `turn` is the first that waits and a slot is free.
  Slot* BestInTurn(uint64_t turn, std::span<const uint32_t> tokens,
                   std::chrono::steady_clock::time_point deadline) PREFIXD_REQUIRES(mutex_);
  void GiveBack(Held* held) PREFIXD_EXCLUDES(mutex_);

  mutable base::Mutex mutex_;
  base::CondVar free_;
  std::vector<Slot> slots_ PREFIXD_GUARDED_BY(mutex_);
  std::set<uint64_t> waiting_ PREFIXD_GUARDED_BY(mutex_);  // requests by number, first come first
  uint64_t next_turn_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t clock_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::llama
