// Writes dirty blocks from the arena into segments of the SSD tier, and lets the oldest segments go
// when the budget asks for their room. A page stays readable in RAM until its segment is ingested;
// only then may its extent be reused.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/room/spill_demand.h"
#include "cache/store/admission.h"
#include "cache/store/age_out_policy.h"
#include "cache/store/dropper.h"
#include "cache/tables/limits.h"
#include "cache/tables/spaces.h"

namespace prefixd::cache {

struct BlockRecord;  // record.h

// Total page bytes in `blocks`.
uint64_t PageBytesOf(std::span<const index::SpillBlock> blocks);

// Segments that the next one pushes out, and those of their blocks that are written again in it.
struct Leaving {
  std::vector<ssd::SegmentInfo> segments;
  std::vector<index::SpillBlock> blocks;
  uint64_t bytes = 0;  // of pages to be written again
};
// What goes into the next segment.
struct Batch {
  std::vector<index::SpillBlock> blocks;
  size_t first = 0;      // so many are written in any case; urgent ones do not wait for the rest
  uint64_t bytes = 0;    // of dirty pages; without room for them only `leaving` is written
  Leaving leaving;       // its blocks are in `blocks`
  bool refused = false;  // other blocks may be given up now, unwritten
};
// What a segment holds.
struct SegmentSums {
  uint64_t pages = 0, bytes = 0;                      // for the first time on SSD
  uint64_t rewritten_pages = 0, rewritten_bytes = 0;  // once more
};
// For what the files of the SSD tier have room: dirty pages and those that are written again, the
// latter alone, or nothing.
enum class SsdRoom { kNone, kForKept, kForAll };
enum class WriteLimits { kKeep, kIgnore };

// Thread-safe: one thread at a time writes a segment, holding `mutex`. The store must be open.
class Segments {
 public:
  Segments(Context* context, Spaces* spaces, const LimitedSpaces* limited, SpillDemand* demand,
           Dropper* dropper);

  // --- segments.cc ---
  // Writes one segment. Returns the bytes spilled, or 1 if it did something else that makes room;
  // 0 = nothing is dirty, or there is no room without dropping what was written after
  // `round_start`.
  absl::StatusOr<uint64_t> SpillOnce(uint64_t round_start, WriteLimits limits = WriteLimits::kKeep)
      PREFIXD_EXCLUDES(mutex);
  // Writes the batch and lets the segments go that leave for it. On an error nothing has changed.
  absl::StatusOr<SegmentSums> Write(Batch batch) PREFIXD_REQUIRES(mutex);
  // Commits wait for these blocks: the next segment takes them before all others.
  void AddUrgent(std::span<const index::BlockRef> blocks) PREFIXD_EXCLUDES(urgent_mutex_);
  bool urgent_waits() const { return urgent_waits_; }
  // The store was opened, with so much of its budget unused: that may be written at once.
  void StartBudget() PREFIXD_REQUIRES(mutex);
  // What the write budget allowed when it was asked last.
  uint64_t may_write_bytes() const { return may_write_bytes_; }

  // --- age_out.cc ---
  // Takes the segment out of the index now; its files go later.
  void Leave(const ssd::SegmentInfo& segment) PREFIXD_REQUIRES(mutex);
  // Makes room for a segment of `bytes` and what is written again with it, in the files as they
  // are. Where age-out a segment ahead was not enough (the budget shrank, a segment is larger than
  // most), the oldest go without being written again; none newer than `keep_after`: pages of a
  // dropped segment that are in RAM become dirty again, and a round that dropped its own writing
  // would never end.
  SsdRoom MakeRoom(uint64_t bytes, uint64_t keep_after, Leaving* leaving) PREFIXD_REQUIRES(mutex);
  // Removes one database that was moved aside. False: none is left, or it cannot be removed.
  bool RemoveDamaged();
  absl::Status CheckBudget(uint64_t ssd_bytes) const;
  absl::Status Resize(uint64_t ssd_bytes) PREFIXD_EXCLUDES(mutex);

  // One segment is written at a time. Also held while the index is loaded or cleared.
  base::Mutex mutex;
  AgeOutPolicy policy PREFIXD_GUARDED_BY(mutex);

 private:
  absl::Status CheckFreeSpace() const;
  Batch PickBatch(uint64_t round_start, WriteLimits limits) PREFIXD_REQUIRES(mutex);
  // What commits wait for before all else; then the coldest blocks.
  std::vector<index::SpillBlock> PickDirty(uint64_t max_bytes, Admission admission, bool* refused)
      PREFIXD_REQUIRES(mutex);
  std::vector<index::SpillBlock> PickUrgent(uint64_t max_bytes) PREFIXD_REQUIRES(mutex);
  Admission Admitted(WriteLimits limits) PREFIXD_REQUIRES(mutex);
  bool Refuse(const AdmissionRule& rule, std::vector<index::SpillBlock>* blocks);  // true: some
  // Takes the blocks that did not come into the segment out of the batch, unpicked, and fills in
  // the record sequences of the others.
  absl::Status WriteSegment(Batch* batch, std::vector<index::SpilledPage>* spilled,
                            SegmentSums* sums) PREFIXD_REQUIRES(mutex);
  absl::Status WritePages(ssd::SegmentWriter* segment, const index::SpillBlock& block,
                          std::vector<index::SpilledPage>* spilled, BlockRecord* record,
                          SegmentSums* sums);
  uint32_t ElementBytes(const block::PageName& name) const;
  // False: the page that was to be written again is bad or gone.
  bool ReadAgain(const index::PageInfo& page, std::vector<std::byte>* buffer);
  void SayFailed(const absl::Status& status);
  uint64_t SegmentBytes() const;  // of a segment under the present SSD budget
  Leaving PickLeaving(uint64_t keep_after) PREFIXD_REQUIRES(mutex);
  bool HasRoom(uint64_t bytes);  // waits for files that are being removed
  uint64_t Budget() const { return context_->ssd_budget_bytes; }

  Context* const context_;
  Spaces* const spaces_;
  const LimitedSpaces* const limited_;
  SpillDemand* const demand_;
  Dropper* const dropper_;
  WriteBudget write_budget_ PREFIXD_GUARDED_BY(mutex);
  std::atomic<uint64_t> may_write_bytes_{0};

  base::Mutex urgent_mutex_{"Segments::urgent_mutex_"};
  std::vector<index::BlockRef> urgent_ PREFIXD_GUARDED_BY(urgent_mutex_);
  std::atomic<bool> urgent_waits_{false};  // urgent_ is not empty: a segment under way ends for it
};

}  // namespace prefixd::cache
