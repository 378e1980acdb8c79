// Spill: dirty blocks from the arena into segments, ahead of need. A page stays readable until its
// segment is ingested; only then may its extent be reused.
#include <algorithm>

#include "base/size.h"
#include "base/status.h"
#include "cache/core.h"
#include "cache/record.h"

namespace prefixd::cache {
namespace {

constexpr std::chrono::seconds kPauseAfterFailure(1);

index::RestoredPage OnDisk(const index::PageInfo& page, uint64_t sequence) {
  return {.group = page.ref.group,
          .rung = page.ref.rung,
          .tokens = page.name.tokens,
          .page_bytes = page.page_bytes,
          .payload_bytes = page.payload_bytes,
          .check = page.check,
          .ssd_sequence = sequence};
}

}  // namespace

// Whether free and clean extents are below so many eighths of the arena: the spiller starts below
// two and goes on to three, so that allocations seldom wait for the disk.
bool Core::CleanBelow(uint64_t eighths) const {
  const ram::ArenaStats stats = arena->stats();
  const index::IndexCounts counts = index->Counts();
  const uint64_t free_bytes = stats.slabs_free * stats.slab_bytes;
  return counts.dirty_bytes > 0 &&
         free_bytes + counts.clean_bytes < stats.capacity_bytes / 8 * eighths;
}

absl::Status Core::WriteSegment(std::span<index::SpillBlock> blocks,
                                std::vector<index::SpilledPage>* spilled) {
  PREFIXD_ASSIGN_OR_RETURN(const std::unique_ptr<ssd::SegmentWriter> segment, store->NewSegment());
  std::vector<BlockRecord> records;
  for (const index::SpillBlock& block : blocks) {
    BlockRecord record{.space = block.space,
                       .first_token = block.first_token,
                       .last_use = block.last_use,
                       .block = {}};
    record.block.hash = block.hash;
    record.block.parent = block.parent;
    record.block.parent_path = block.parent_path;
    record.block.tokens = block.tokens;
    record.block.content = block.content;
    record.block.ends = block.ends;
    for (const index::PageInfo& page : block.ssd_pages)
      record.block.pages.push_back(OnDisk(page, page.ssd_sequence));
    for (const index::PageInfo& page : block.pages) {
      const std::span<const std::byte> bytes(arena->data(page.extent), page.page_bytes);
      PREFIXD_ASSIGN_OR_RETURN(
          const uint64_t sequence,
          segment->AddPage(block::MakePageHeader(page.name, bytes, page.check), bytes));
      spilled->push_back({page.ref, sequence});
      record.block.pages.push_back(OnDisk(page, sequence));
    }
    records.push_back(std::move(record));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    PREFIXD_ASSIGN_OR_RETURN(blocks[i].record_sequence,
                             segment->AddRecord(EncodeRecord(records[i])));
  }
  return segment->Finish().status();
}

// Drops the oldest segments until `bytes` more fit into the SSD budget, none newer than
// `keep_after`: pages of a dropped segment that are in RAM become dirty again, and a round that
// dropped its own writing would never end.
bool Core::MakeSsdRoom(uint64_t bytes, uint64_t keep_after) {
  for (const ssd::SegmentInfo& oldest : store->Segments()) {
    if (store->FileBytes() + bytes <= options.ssd_budget_bytes) return true;
    if (oldest.last_sequence > keep_after) return false;
    index->DropSsdRange(oldest.first_sequence, oldest.last_sequence);
    if (absl::Status status = store->DropSegment(oldest); !status.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat("ssd: cannot drop the oldest segment: ", std::string(status.message())));
      return false;
    }
    counters.Add("segments.dropped");
    FreeTaken();
  }
  return store->FileBytes() + bytes <= options.ssd_budget_bytes;
}

absl::StatusOr<uint64_t> Core::SpillOnce(uint64_t round_start) {
  base::MutexLock segment(segment_mutex);
  PREFIXD_RETURN_IF_ERROR(SaveSpaces());
  std::vector<index::SpillBlock> blocks = index->PickSpill(options.segment_bytes);
  if (blocks.empty()) return 0;
  uint64_t bytes = 0;
  size_t pages = 0;
  for (const index::SpillBlock& block : blocks) {
    for (const index::PageInfo& page : block.pages) bytes += page.page_bytes;
    pages += block.pages.size();
  }
  if (!MakeSsdRoom(bytes + bytes / 16, round_start)) {
    index->AbortSpill(blocks);
    FreeTaken();
    counters.Add("ssd.full");
    return 0;
  }
  std::vector<index::SpilledPage> spilled;
  const int64_t started = options.clock->MonotonicMicros();
  absl::Status status = WriteSegment(blocks, &spilled);
  if (!status.ok()) {
    index->AbortSpill(blocks);
    counters.Add("ssd.write_errors");
    if (!ssd_failing.exchange(true)) {
      Log(LogLevel::kError, absl::StrCat("ssd: cannot write, serving goes on from RAM alone: ",
                                         std::string(status.message())));
    }
    FreeTaken();
    return status;
  }
  index->FinishSpill(blocks, spilled);
  FreeTaken();
  if (ssd_failing.exchange(false)) Log(LogLevel::kInfo, "ssd: writes succeed again");
  counters.Add("segments.written");
  counters.Add("pages.spilled", pages);
  counters.Add("bytes.spilled", bytes);
  counters.Time("spill", static_cast<uint64_t>(options.clock->MonotonicMicros() - started));
  return std::max<uint64_t>(bytes, 1);  // records alone are progress too
}

// After a failure: pages stay droppable for a moment instead of going from one vain segment to the
// next.
void Core::PauseSpilling() {
  const base::Deadline end = std::chrono::steady_clock::now() + kPauseAfterFailure;
  while (!spill_stop && spill_wake.WaitUntil(spill_mutex, end)) {
  }
}

void Core::SpillLoop() {
  while (true) {
    {
      base::MutexLock lock(spill_mutex);
      while (!spill_wanted && !spill_stop) spill_wake.Wait(spill_mutex);
      if (spill_stop) return;
      spill_wanted = false;
    }
    const uint64_t round_start = store->last_sequence();
    bool again = true;
    while (again) {
      const absl::StatusOr<uint64_t> bytes = SpillOnce(round_start);
      again = bytes.ok() && *bytes > 0 && CleanBelow(3);
      base::MutexLock lock(spill_mutex);
      ++spill_rounds;
      spill_done.NotifyAll();
      if (!bytes.ok()) PauseSpilling();
      if (spill_stop) return;
    }
  }
}

FlushResult Cache::Flush(base::Deadline deadline) {
  FlushResult result;
  const uint64_t round_start = core_->store != nullptr ? core_->store->last_sequence() : 0;
  while (core_->store != nullptr && std::chrono::steady_clock::now() < deadline) {
    const absl::StatusOr<uint64_t> bytes = core_->SpillOnce(round_start);
    if (!bytes.ok() || *bytes == 0) break;
    result.flushed_bytes += *bytes;
  }
  result.dirty_bytes = core_->index->Counts().dirty_bytes;
  core_->counters.Add("flushes");
  return result;
}

}  // namespace prefixd::cache
