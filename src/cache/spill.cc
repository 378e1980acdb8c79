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

// All but the pages that are about to be written.
BlockRecord RecordOf(const index::SpillBlock& block) {
  BlockRecord record{.space = block.space,
                     .first_token = block.first_token,
                     .last_use = block.last_use,
                     .block = {}};
  record.block.hash = block.hash;
  record.block.parent = block.parent;
  record.block.serials = block.serials;
  record.block.other_serials = block.other_serials;
  record.block.tokens = block.tokens;
  record.block.content = block.content;
  record.block.ends = block.ends;
  for (const index::PageInfo& page : block.ssd_pages) {
    record.block.pages.push_back(OnDisk(page, page.ssd_sequence));
  }
  return record;
}

}  // namespace

uint64_t PageBytesOf(std::span<const index::SpillBlock> blocks) {
  uint64_t bytes = 0;
  for (const index::SpillBlock& block : blocks) {
    for (const index::PageInfo& page : block.pages) bytes += page.page_bytes;
  }
  return bytes;
}

// Whether free and clean extents are below so many eighths of the arena, or clean ones below so
// many eighths of what an index that is nearly full knows in RAM: the spiller starts below two and
// goes on to three, so that allocations and commits seldom wait for the disk.
bool Core::CleanBelow(uint64_t eighths) const {
  const ram::ArenaStats stats = arena->stats();
  const index::IndexCounts counts = index->Counts();
  const uint64_t free_bytes = stats.slabs_free * stats.slab_bytes;
  if (counts.dirty_bytes == 0) return false;
  const bool index_fills = counts.memory_bytes > index_share_bytes / 4 * 3;
  return free_bytes + counts.clean_bytes < stats.capacity_bytes / 8 * eighths ||
         (index_fills &&
          counts.clean_bytes < (counts.clean_bytes + counts.dirty_bytes) / 8 * eighths);
}

bool Core::ReadAgain(const index::PageInfo& page, std::vector<std::byte>* buffer) {
  buffer->resize(page.page_bytes);
  const absl::Status status = store->ReadPage(page.ssd_sequence, page.name, page.check, *buffer);
  if (status.ok()) return true;
  counters.Add("rewrite.unreadable");
  Log(LogLevel::kWarning, absl::StrCat("page at ssd sequence ", page.ssd_sequence,
                                       " is not written again: ", std::string(status.message())));
  return false;
}

// Of a page in full precision, keys and values alike: that compresses. 0: of another.
uint32_t Core::ElementBytes(const block::PageName& name) const {
  const SpacePtr space = SpaceOf(name.space);
  if (space == nullptr || name.group >= space->identity.groups.size()) return 0;
  const block::LayerGroup& group = space->identity.groups[name.group];
  if (name.rung >= group.ladder.size()) return 0;
  const quant::KvFormat& format = group.ladder[name.rung];
  const bool raw = format.key.codec == quant::Codec::kRaw && format.key == format.value;
  return raw ? quant::DtypeBytes(format.key.dtype) : 0;
}

absl::Status Core::WritePages(ssd::SegmentWriter* segment, const index::SpillBlock& block,
                              std::vector<index::SpilledPage>* spilled, BlockRecord* record,
                              SegmentSums* sums) {
  std::vector<std::byte> buffer;
  for (const index::PageInfo& page : block.pages) {
    const InFlight buffered(&in_flight_bytes, page.extent ? 0 : page.page_bytes);
    if (!page.extent && !ReadAgain(page, &buffer)) continue;
    const std::span<const std::byte> bytes =
        page.extent ? std::span<const std::byte>(arena->data(page.extent), page.page_bytes)
                    : std::span<const std::byte>(buffer);
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t sequence,
                             segment->AddPage(block::MakePageHeader(page.name, bytes, page.check),
                                              bytes, ElementBytes(page.name)));
    spilled->push_back({page.ref, sequence, page.ssd_sequence});
    record->block.pages.push_back(OnDisk(page, sequence));
    const bool again = page.ssd_sequence != 0;
    ++(again ? sums->rewritten_pages : sums->pages);
    (again ? sums->rewritten_bytes : sums->bytes) += page.page_bytes;
  }
  return absl::OkStatus();
}

absl::Status Core::WriteSegment(Batch* batch, std::vector<index::SpilledPage>* spilled,
                                SegmentSums* sums) {
  std::vector<index::SpillBlock>& blocks = batch->blocks;
  PREFIXD_ASSIGN_OR_RETURN(const std::unique_ptr<ssd::SegmentWriter> segment, store->NewSegment());
  std::vector<std::string> records;
  for (const index::SpillBlock& block : blocks) {
    if (records.size() >= batch->first && !records.empty() && urgent_waits) break;
    BlockRecord record = RecordOf(block);
    PREFIXD_RETURN_IF_ERROR(WritePages(segment.get(), block, spilled, &record, sums));
    records.push_back(EncodeRecord(record));
  }
  index->AbortSpill(std::span(blocks).subspan(records.size()));
  blocks.resize(records.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    PREFIXD_ASSIGN_OR_RETURN(blocks[i].record_sequence, segment->AddRecord(records[i]));
  }
  PREFIXD_ASSIGN_OR_RETURN(const ssd::SegmentInfo info, segment->Finish());
  last_segment_bytes = segment->bytes();
  write_budget.Take(segment->bytes());
  age_out.Written(info, index->Counts().stamp);
  age_out.Spilled(sums->bytes, SsdBudget());
  age_out.Rewritten(sums->rewritten_bytes);
  return absl::OkStatus();
}

void Core::SaySpillFailed(const absl::Status& status) {
  counters.Add("ssd.write_errors");
  if (ssd_failing.exchange(true)) return;
  Log(LogLevel::kError, absl::StrCat("ssd: cannot write, serving goes on from RAM alone: ",
                                     std::string(status.message())));
}

Admission Core::Admitted(WriteLimits limits) {
  write_budget.SaveUpTo(SsdBudget());
  write_budget.Asked(asked_bytes.exchange(0));
  may_write_bytes = write_budget.left_bytes();
  // Where refusing leaves nothing that may be given up, the budget is overdrawn.
  const bool must = must_spill.exchange(false);
  return must || limits == WriteLimits::kIgnore ? Admission::kAll : write_budget.admits();
}

bool Core::Refuse(const AdmissionRule& rule, std::vector<index::SpillBlock>* blocks) {
  const std::vector<index::SpillBlock> refused = TakeRefused(rule, blocks);
  index->RefuseSpill(refused);
  if (refused.empty()) return false;
  counters.AddAll({{"admission.refused_blocks", refused.size()},
                   {"admission.refused_bytes", PageBytesOf(refused)}});
  return true;
}

std::vector<index::SpillBlock> Core::PickDirty(uint64_t max_bytes, Admission admission,
                                               bool* refused) {
  std::vector<index::BlockRef> first;
  {
    base::MutexLock lock(spill_mutex);
    first = std::exchange(urgent, {});
    urgent_waits = false;
  }
  std::vector<index::SpillBlock> blocks;
  if (!first.empty()) blocks = index->PickSpillOf(first, max_bytes);
  if (!blocks.empty()) return blocks;
  blocks = index->PickSpill(max_bytes);
  if (admission == Admission::kNothing) *refused = Refuse(Never(), &blocks);
  const bool unlimited = options.ssd_write_bytes_per_s == 0 && !write_budget.has_share();
  if (admission == Admission::kNothing || unlimited) return blocks;
  if (admission == Admission::kLikelyReuse) {
    *refused = Refuse(LikelyReuse(options.ssd_shallow_tokens), &blocks);
  }
  // What was refused before is not among them; where they continue it, it is written with them, or
  // a path on SSD would have a gap.
  std::vector<index::BlockRef> admitted;
  for (const index::SpillBlock& block : blocks) {
    if (block.pages.empty()) continue;
    admitted.push_back({block.pages.front().ref.node, block.pages.front().ref.node_id});
  }
  if (admitted.empty()) return blocks;
  index->AbortSpill(blocks);
  return index->PickSpillOf(admitted, max_bytes);
}

Core::Batch Core::PickBatch(uint64_t round_start, WriteLimits limits) {
  Batch batch;
  const Admission admission = Admitted(limits);
  const uint64_t segment_bytes = SegmentBytes();
  std::vector<index::SpillBlock> dirty;
  if (admission == Admission::kNothing) {  // mostly there is nothing that segments leave for
    dirty = PickDirty(segment_bytes / 4, admission, &batch.refused);
    if (!dirty.empty()) batch.leaving = PickLeaving(round_start);
  } else {
    batch.leaving = PickLeaving(round_start);
    const uint64_t rewritten = std::min(segment_bytes / 4 * 3, batch.leaving.bytes);
    dirty = PickDirty(segment_bytes - rewritten, admission, &batch.refused);
  }
  batch.bytes = PageBytesOf(dirty);
  const SsdRoom room =
      dirty.empty() ? SsdRoom::kNone : MakeSsdRoom(batch.bytes, round_start, &batch.leaving);
  if (room == SsdRoom::kForKept) {  // the next round has the room of the segments that leave
    index->AbortSpill(dirty);
    dirty.clear();
  } else if (room == SsdRoom::kNone) {
    index->AbortSpill(dirty);
    index->AbortSpill(batch.leaving.blocks);
    FreeTaken();
    if (!dirty.empty()) counters.Add("ssd.full");
    Batch none;
    none.refused = batch.refused;
    return none;
  }
  batch.blocks = batch.leaving.blocks;
  batch.first = batch.blocks.size();
  batch.blocks.insert(batch.blocks.end(), dirty.begin(), dirty.end());
  return batch;
}

absl::StatusOr<uint64_t> Core::SpillOnce(uint64_t round_start, WriteLimits limits) {
  base::MutexLock segment(segment_mutex);
  if (absl::Status space = CheckFreeSpace(); !space.ok()) {
    SaySpillFailed(space);
    return space;
  }
  Batch batch = PickBatch(round_start, limits);
  if (batch.blocks.empty()) return batch.refused ? 1 : 0;
  PREFIXD_ASSIGN_OR_RETURN(const SegmentSums sums, WriteBatch(std::move(batch)));
  return std::max<uint64_t>(sums.bytes, 1);  // records alone are progress too
}

absl::StatusOr<SegmentSums> Core::WriteBatch(Batch batch) {
  std::vector<index::SpilledPage> spilled;
  SegmentSums sums;
  const int64_t started = options.clock->MonotonicMicros();
  absl::Status status = SaveSpaces(batch.blocks);
  if (status.ok()) status = WriteSegment(&batch, &spilled, &sums);
  if (!status.ok()) {
    index->AbortSpill(batch.blocks);
    FreeTaken();
    SaySpillFailed(status);
    return status;
  }
  index->FinishSpill(batch.blocks, spilled);
  for (const ssd::SegmentInfo& oldest : batch.leaving.segments) Leave(oldest);
  FreeTaken();
  if (ssd_failing.exchange(false)) Log(LogLevel::kInfo, "ssd: writes succeed again");
  counters.AddAll({{"segments.written", 1},
                   {"pages.spilled", sums.pages},
                   {"bytes.spilled", sums.bytes},
                   {"pages.rewritten", sums.rewritten_pages},
                   {"bytes.rewritten", sums.rewritten_bytes}});
  counters.Time("spill", static_cast<uint64_t>(options.clock->MonotonicMicros() - started));
  return sums;
}

// Every round takes what is urgent first. A round may find some of the blocks in a segment under
// way, or cut short before them: they are asked for until they are there.
bool Core::WaitForSsd(const std::vector<index::BlockRef>& blocks, const Patience& patience) {
  constexpr int kVainRounds = 3;  // one may have begun before, one may have been of others' blocks
  for (int vain = 0; vain < kVainRounds;) {
    const index::PrefixIndex::OnDisk on_disk = index->AreOnSsd(blocks);
    if (on_disk != index::PrefixIndex::OnDisk::kNotYet) {
      return on_disk == index::PrefixIndex::OnDisk::kAll;
    }
    base::MutexLock lock(spill_mutex);
    urgent.insert(urgent.end(), blocks.begin(), blocks.end());
    urgent_waits = true;
    spill_wanted = true;
    spill_wake.NotifyAll();
    const uint64_t round = spill_rounds, failures = spill_failures;
    while (spill_rounds == round && !spill_stop) {
      if (patience.over()) return false;
      spill_done.WaitUntil(spill_mutex, patience.next_look());
    }
    if (spill_stop || ssd_failing) return false;
    vain += spill_failures != failures;
  }
  return false;
}

// After a failure: pages stay droppable for a moment instead of going from one vain segment to the
// next.
void Core::PauseSpilling() {
  const base::Deadline end = std::chrono::steady_clock::now() + kPauseAfterFailure;
  while (!spill_stop && spill_wake.WaitUntil(spill_mutex, end)) {
  }
}

void Core::SpillLoop() {
  {
    base::MutexLock lock(spill_mutex);
    while (!tier_works && !spill_stop) spill_wake.Wait(spill_mutex);
    if (spill_stop) return;
  }
  SelfTest();
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
      base::MutexLock lock(spill_mutex);
      // Nothing to write, no room, or a failure.
      if (!bytes.ok() || *bytes == 0) ++spill_failures;
      again = bytes.ok() && *bytes > 0 && (urgent_waits || CleanBelow(3));
      ++spill_rounds;
      spill_done.NotifyAll();
      if (!bytes.ok()) PauseSpilling();
      if (spill_stop) return;
    }
  }
}

FlushResult Cache::Flush(const Patience& patience) {
  FlushResult result;
  const uint64_t round_start = core_->store != nullptr ? core_->store->last_sequence() : 0;
  core_->index->AdmitAll();
  const bool loaded = core_->WaitLoaded(patience.until());
  if (loaded && core_->store != nullptr) core_->WaitVerified(patience);
  while (loaded && core_->store != nullptr && !patience.over()) {
    const absl::StatusOr<uint64_t> bytes =
        core_->SpillOnce(round_start, Core::WriteLimits::kIgnore);
    if (!bytes.ok() || *bytes == 0) break;
    result.flushed_bytes += *bytes;
  }
  result.dirty_bytes = core_->index->Counts().dirty_bytes;
  core_->counters.Add("flushes");
  return result;
}

}  // namespace prefixd::cache
