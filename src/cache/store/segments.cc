#include "cache/store/segments.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "cache/store/record.h"

namespace prefixd::cache {
namespace {

index::RestoredPage OnDisk(const index::PageInfo& page, uint64_t sequence) {
  return {.group = page.ref.group,
          .rung = page.ref.rung,
          .tokens = page.name.tokens,
          .page_bytes = page.page_bytes,
          .payload_bytes = page.payload_bytes,
          .check = page.check,
          .ssd_sequence = sequence};
}

// The record without the pages that are about to be written.
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

Segments::Segments(Context* context, Spaces* spaces, const LimitedSpaces* limited,
                   SpillDemand* demand, Dropper* dropper)
    : context_(context),
      spaces_(spaces),
      limited_(limited),
      demand_(demand),
      dropper_(dropper),
      write_budget_({.bytes_per_s = context->options.ssd_write_bytes_per_s,
                     .window = context->options.ssd_write_window,
                     .share = context->options.ssd_write_share},
                    context->options.clock) {}

uint64_t PageBytesOf(std::span<const index::SpillBlock> blocks) {
  uint64_t bytes = 0;
  for (const index::SpillBlock& block : blocks) {
    for (const index::PageInfo& page : block.pages) bytes += page.page_bytes;
  }
  return bytes;
}

bool Segments::ReadAgain(const index::PageInfo& page, std::vector<std::byte>* buffer) {
  buffer->resize(page.page_bytes);
  const absl::Status status =
      context_->store->ReadPage(page.ssd_sequence, page.name, page.check, *buffer);
  if (status.ok()) return true;
  context_->counters.Add("rewrite.unreadable");
  context_->Log(LogLevel::kWarning,
                absl::StrCat("page at ssd sequence ", page.ssd_sequence,
                             " is not written again: ", std::string(status.message())));
  return false;
}

// Bytes of an element if the page has keys and values in the same full precision, which compresses;
// else 0.
uint32_t Segments::ElementBytes(const block::PageName& name) const {
  const SpacePtr space = spaces_->Find(name.space);
  if (space == nullptr || name.group >= space->identity.groups.size()) return 0;
  const block::LayerGroup& group = space->identity.groups[name.group];
  if (name.rung >= group.ladder.size()) return 0;
  const quant::KvFormat& format = group.ladder[name.rung];
  const bool raw = format.key.codec == quant::Codec::kRaw && format.key == format.value;
  return raw ? quant::DtypeBytes(format.key.dtype) : 0;
}

absl::Status Segments::WritePages(ssd::SegmentWriter* segment, const index::SpillBlock& block,
                                  std::vector<index::SpilledPage>* spilled, BlockRecord* record,
                                  SegmentSums* sums) {
  std::vector<std::byte> buffer;
  for (const index::PageInfo& page : block.pages) {
    const InFlight buffered(&context_->in_flight_bytes, page.extent ? 0 : page.page_bytes);
    if (!page.extent && !ReadAgain(page, &buffer)) continue;
    const std::span<const std::byte> bytes =
        page.extent
            ? std::span<const std::byte>(context_->arena->data(page.extent), page.page_bytes)
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

absl::Status Segments::WriteSegment(Batch* batch, std::vector<index::SpilledPage>* spilled,
                                    SegmentSums* sums) {
  std::vector<index::SpillBlock>& blocks = batch->blocks;
  PREFIXD_ASSIGN_OR_RETURN(const std::unique_ptr<ssd::SegmentWriter> segment,
                           context_->store->NewSegment());
  std::vector<std::string> records;
  for (const index::SpillBlock& block : blocks) {
    if (records.size() >= batch->first && !records.empty() && urgent_waits_) break;
    BlockRecord record = RecordOf(block);
    PREFIXD_RETURN_IF_ERROR(WritePages(segment.get(), block, spilled, &record, sums));
    records.push_back(EncodeRecord(record));
  }
  context_->index->AbortSpill(std::span(blocks).subspan(records.size()));
  blocks.resize(records.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    PREFIXD_ASSIGN_OR_RETURN(blocks[i].record_sequence, segment->AddRecord(records[i]));
  }
  PREFIXD_ASSIGN_OR_RETURN(const ssd::SegmentInfo info, segment->Finish());
  write_budget_.Take(segment->bytes());
  policy.Written(info, context_->index->Counts().stamp);
  policy.Spilled(sums->bytes, Budget());
  policy.Rewritten(sums->rewritten_bytes);
  return absl::OkStatus();
}

void Segments::SayFailed(const absl::Status& status) {
  context_->counters.Add("ssd.write_errors");
  if (context_->ssd_failing.exchange(true)) return;
  context_->Log(LogLevel::kError,
                absl::StrCat("ssd: cannot write, serving goes on from RAM alone: ",
                             std::string(status.message())));
}

Admission Segments::Admitted(WriteLimits limits) {
  write_budget_.SaveUpTo(Budget());
  write_budget_.Asked(context_->asked_bytes.exchange(0));
  may_write_bytes_ = write_budget_.left_bytes();
  // Where refusing leaves nothing that may be given up, the budget is overdrawn.
  const bool must = demand_->TakeInsisted();
  return must || limits == WriteLimits::kIgnore ? Admission::kAll : write_budget_.admits();
}

bool Segments::Refuse(const AdmissionRule& rule, std::vector<index::SpillBlock>* blocks) {
  const std::vector<index::SpillBlock> refused = TakeRefused(rule, blocks);
  context_->index->RefuseSpill(refused);
  if (refused.empty()) return false;
  context_->counters.AddAll({{"admission.refused_blocks", refused.size()},
                             {"admission.refused_bytes", PageBytesOf(refused)}});
  return true;
}

std::vector<index::SpillBlock> Segments::PickUrgent(uint64_t max_bytes) {
  std::vector<index::BlockRef> urgent;
  {
    base::MutexLock lock(urgent_mutex_);
    urgent = std::exchange(urgent_, {});
    urgent_waits_ = false;
  }
  if (urgent.empty()) return {};
  return context_->index->PickSpillOf(urgent, max_bytes);
}

std::vector<index::SpillBlock> Segments::PickDirty(uint64_t max_bytes, Admission admission,
                                                   bool* refused) {
  std::vector<index::SpillBlock> blocks = PickUrgent(max_bytes);
  if (!blocks.empty()) return blocks;
  blocks = context_->index->PickSpill(max_bytes);
  if (admission == Admission::kNothing) *refused = Refuse(Never(), &blocks);
  const bool unlimited = context_->options.ssd_write_bytes_per_s == 0 && !write_budget_.has_share();
  if (admission == Admission::kNothing || unlimited) return blocks;
  if (admission == Admission::kLikelyReuse) {
    *refused = Refuse(LikelyReuse(context_->options.ssd_shallow_tokens), &blocks);
  }
  // What was refused before is not among them; where they continue it, it is written with them, or
  // a path on SSD would have a gap.
  std::vector<index::BlockRef> admitted;
  for (const index::SpillBlock& block : blocks) {
    if (block.pages.empty()) continue;
    admitted.push_back({block.pages.front().ref.node, block.pages.front().ref.node_id});
  }
  if (admitted.empty()) return blocks;
  context_->index->AbortSpill(blocks);
  return context_->index->PickSpillOf(admitted, max_bytes);
}

Batch Segments::PickBatch(uint64_t round_start, WriteLimits limits) {
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
      dirty.empty() ? SsdRoom::kNone : MakeRoom(batch.bytes, round_start, &batch.leaving);
  if (room == SsdRoom::kForKept) {  // the next round has the room of the segments that leave
    context_->index->AbortSpill(dirty);
    dirty.clear();
  } else if (room == SsdRoom::kNone) {
    context_->index->AbortSpill(dirty);
    context_->index->AbortSpill(batch.leaving.blocks);
    context_->FreeTaken();
    if (!dirty.empty()) context_->counters.Add("ssd.full");
    Batch none;
    none.refused = batch.refused;
    return none;
  }
  batch.blocks = batch.leaving.blocks;
  batch.first = batch.blocks.size();
  batch.blocks.insert(batch.blocks.end(), dirty.begin(), dirty.end());
  return batch;
}

absl::StatusOr<uint64_t> Segments::SpillOnce(uint64_t round_start, WriteLimits limits) {
  base::MutexLock lock(mutex);
  if (absl::Status space = CheckFreeSpace(); !space.ok()) {
    SayFailed(space);
    return space;
  }
  Batch batch = PickBatch(round_start, limits);
  if (batch.blocks.empty()) return batch.refused ? 1 : 0;
  PREFIXD_ASSIGN_OR_RETURN(const SegmentSums sums, Write(std::move(batch)));
  return std::max<uint64_t>(sums.bytes, 1);  // records alone are progress too
}

absl::StatusOr<SegmentSums> Segments::Write(Batch batch) {
  std::vector<index::SpilledPage> spilled;
  SegmentSums sums;
  const int64_t started = context_->options.clock->MonotonicMicros();
  absl::Status status = spaces_->SaveThoseOf(batch.blocks);
  if (status.ok()) status = WriteSegment(&batch, &spilled, &sums);
  if (!status.ok()) {
    context_->index->AbortSpill(batch.blocks);
    context_->FreeTaken();
    SayFailed(status);
    return status;
  }
  context_->index->FinishSpill(batch.blocks, spilled);
  for (const ssd::SegmentInfo& oldest : batch.leaving.segments) Leave(oldest);
  context_->FreeTaken();
  if (context_->ssd_failing.exchange(false))
    context_->Log(LogLevel::kInfo, "ssd: writes succeed again");
  context_->counters.AddAll({{"segments.written", 1},
                             {"pages.spilled", sums.pages},
                             {"bytes.spilled", sums.bytes},
                             {"pages.rewritten", sums.rewritten_pages},
                             {"bytes.rewritten", sums.rewritten_bytes}});
  context_->counters.Time(
      "spill", static_cast<uint64_t>(context_->options.clock->MonotonicMicros() - started));
  return sums;
}

void Segments::AddUrgent(std::span<const index::BlockRef> blocks) {
  base::MutexLock lock(urgent_mutex_);
  urgent_.insert(urgent_.end(), blocks.begin(), blocks.end());
  urgent_waits_ = true;
}

void Segments::StartBudget() {
  write_budget_.SaveUpTo(Budget());
  write_budget_.Add(Budget() - std::min(Budget(), context_->store->FileBytes()));
  may_write_bytes_ = write_budget_.left_bytes();
}

}  // namespace prefixd::cache
