// Which request has which slot of which server, and what is in the slots' caches.
//
// Thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
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
  // Waits until a slot is free, at most until `deadline`, and takes the one whose cache has most of
  // the beginning of `tokens`; among equal ones the one that was used least recently.
  std::optional<Held> Take(std::span<const uint32_t> tokens,
                           std::chrono::steady_clock::time_point deadline) PREFIXD_EXCLUDES(mutex_);
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
  void GiveBack(Held* held) PREFIXD_EXCLUDES(mutex_);

  mutable base::Mutex mutex_;
  base::CondVar free_;
  std::vector<Slot> slots_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t clock_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::llama
