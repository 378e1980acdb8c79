// Room in RAM: extents for pages, memory for the index, slabs for the size that is wanted, and the
// limits of spaces.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/context.h"
#include "cache/patience.h"
#include "cache/room/page_records.h"
#include "cache/room/spill_demand.h"
#include "cache/tables/tables.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// Thread-safe.
class Room {
 public:
  Room(Context* context, Tables* tables, PageRecords* records, SpillDemand* spill)
      : context_(context), tables_(tables), records_(records), spill_(spill) {}

  // --- room.cc ---
  // Returns an extent for a page: evicts, waits for the spiller or empties a slab as needed.
  // ResourceExhausted when patience is over, or soon after `cancelled` turned true.
  absl::StatusOr<block::Extent> Take(uint64_t page_bytes, uint64_t full_page_bytes,
                                     const Patience& patience,
                                     const std::atomic<bool>* cancelled = nullptr);
  // Keeps the index within its share: an index near its limit gets more of the arena, and forgets
  // the coldest blocks when it has all that it may have.
  void MakeIndexRoom(const Patience& patience, const std::atomic<bool>* cancelled);

  // --- index_share.cc ---
  // What the index is about to need beside what it has; zeros: nothing.
  struct IndexNeeds {
    uint64_t bytes = 0;        // for all
    uint64_t table_bytes = 0;  // of these, for leases, pins and reservations
    uint64_t space_bytes = 0;  // for all spaces, those included that it has
  };
  // Fits the index's share to what it needs, within what it may have. A larger share is taken from
  // the arena, which empties slabs for it; where their pages are held, the share stays for now. A
  // smaller one gives the arena a slab a minute.
  void FitIndex(const IndexNeeds& more) PREFIXD_EXCLUDES(budget_mutex_);
  void FitIndex() { FitIndex(IndexNeeds()); }
  // As FitIndex, without a lock: by what the index was seen to need, for the leases of all.
  void FitIndexForLeases() PREFIXD_EXCLUDES(budget_mutex_);

  // --- keep_limits.cc ---
  // Ends what has lived too long and gives up what is above a ceiling. Mostly it costs a look at
  // two numbers; whoever asks or stores calls it.
  void KeepLimits();
  void KeepCeiling(block::SpaceHandle space);

  // --- resize.cc ---
  // Changes the RAM budget. InvalidArgument if it is too small or too large; ResourceExhausted if
  // floors of spaces need more; FailedPrecondition without a shared arena.
  absl::Status Resize(uint64_t ram_bytes) PREFIXD_EXCLUDES(budget_mutex_);

  // --- slabs.cc: the thread that retires slabs and backs them ahead of need ---
  // Retires one slab that is beyond the budget, and backs memory ahead. True: another slab is
  // beyond the budget, or waits for workers to unpin it; call it again soon.
  bool Step();
  void Run();  // until Stop
  void Stop() { slab_work_.Stop(); }
  // Slabs were resized or scrubbed: backing them ahead may succeed again.
  void SlabsChanged();

 private:
  using GiveUp = index::PrefixIndex::GiveUp;
  // What a RAM budget would be cut into now.
  struct Cut {
    ram::BudgetShares shares;
    uint64_t index_bytes = 0, arena_bytes = 0;
  };
  absl::StatusOr<Cut> CutFor(uint64_t ram_bytes) const;
  uint64_t LargestBudget(uint64_t ram_bytes) const;
  bool MakeSlabByMoving(uint64_t extent_bytes);
  // Both add to `evicted_bytes`.
  bool EvictSomething(uint64_t extent_bytes, GiveUp what, uint64_t* evicted_bytes);
  bool EvictColdest(uint64_t* evicted_bytes, GiveUp what = GiveUp::kWhatMayGo);
  // Waits a moment for a round of the spiller, or for somebody's lease to end. False: neither can
  // come, or patience is over. `vain_rounds` counts rounds that wrote nothing.
  bool WaitForMore(const Patience& patience, const std::atomic<bool>* cancelled, int* vain_rounds);
  // Moves what nobody holds out of the slab and evicts what has no other place. False: it did
  // nothing.
  bool EmptySlab(const ram::SlabRange& slab, uint64_t may_evict);
  // Returns the pages moved. Stops at the first that has no place elsewhere, unless evicting up to
  // `may_evict` bytes of the coldest blocks makes one.
  size_t MoveOut(const ram::SlabRange& slab, uint64_t may_evict);
  std::optional<block::Extent> PlaceOutside(const index::PageInfo& page, const ram::SlabRange& slab,
                                            std::vector<block::Extent>* inside);
  void FitIndex(const index::MemoryCounts& counts, const IndexNeeds& more)
      PREFIXD_EXCLUDES(budget_mutex_);
  // Goes a step towards `wanted_bytes`. False: the index has all that it can have now.
  bool GrowIndex(uint64_t wanted_bytes) PREFIXD_REQUIRES(budget_mutex_);
  bool EmptyCheapestSlab() PREFIXD_REQUIRES(budget_mutex_);  // false: none is in use
  void ShrinkIndex() PREFIXD_REQUIRES(budget_mutex_);
  void SetIndexShare(uint64_t bytes) PREFIXD_REQUIRES(budget_mutex_);
  // Takes slabs that workers had to unpin, and names workers that did not. True: some still wait.
  bool AwaitsUnpinning();
  bool RetireSlab();  // false: every slab in service is within the budget
  bool WantsSlab() const;
  bool WantsMemoryAhead() const;  // the thread has something to do

  Context* const context_;
  Tables* const tables_;
  PageRecords* const records_;
  SpillDemand* const spill_;
  WorkSignal slab_work_;
  std::atomic<bool> all_backed_{false};  // no slab could be backed ahead: allocations do it
  base::Mutex budget_mutex_;             // one changes shares at a time
  std::atomic<int64_t> grow_after_us_{0}, shrink_after_us_{0};
  std::atomic<uint64_t> unverified_bytes_{0};  // that the index may need for pages not verified yet
  // Slabs that were emptied for the index in vain since it last grew.
  std::set<uint64_t> held_slabs_ PREFIXD_GUARDED_BY(budget_mutex_);
};

}  // namespace prefixd::cache
