// What an earlier daemon left in the arena, as it is before anybody else takes extents or slots:
// its pages, and those that each slot of its sessions may be reading.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/context.h"
#include "cache/tables/sessions.h"

namespace prefixd::cache {

// Not thread-safe.
class Legacy {
 public:
  Legacy(Context* context, Sessions* sessions);
  // The index has the page: the slots that may be reading it hold it.
  void Add(const ram::FoundPage& page, const index::PageRef& ref);
  // Keeps an extent whose page the index does not have while slots may be reading it. False: nobody
  // is, the caller frees it.
  bool Keep(block::Extent extent, uint64_t holders);
  // Puts the earlier sessions into the table, cut off.
  void Seat();

  std::vector<ram::FoundPage> found;
  std::vector<ram::HeldExtent> held;

 private:
  void Seat(const ram::HeldSlot& slot);

  Context* const context_;
  Sessions* const sessions_;
  const std::vector<ram::HeldSlot> held_slots_;
  uint64_t slots_ = 0;  // bit s: slot s is one of held_slots_
  struct OfSlot {
    std::vector<index::PageRef> pages;
    uint64_t bytes = 0;  // of pages
    std::vector<std::shared_ptr<const KeptExtent>> kept;
  };
  std::array<OfSlot, block::kArenaSlots> of_slot_;
};

}  // namespace prefixd::cache
