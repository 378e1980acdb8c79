// Adopts what an earlier daemon left in the file. Reads no payload: 8 GiB of 1 MiB pages are 8,192
// records.
#include <algorithm>
#include <tuple>

#include "base/bytes.h"
#include "base/status.h"
#include "ram/arena.h"
#include "ram/records.h"
#include "ram/shared_file.h"
#include "ram/slot_locks.h"
#include "ram/space_table.h"

namespace prefixd::ram {
namespace {

bool Published(const block::PageRecord& record) {
  return record.state.load(std::memory_order_acquire) ==
             static_cast<uint32_t>(block::RecordState::kPublished) &&
         record.block_tokens <= block::kMaxRecordTokens &&
         record.content_keys <= block::kMaxRecordContent && record.check == RecordCheck(record);
}

std::vector<uint32_t> EndsOf(const block::PageMarks& marks) {
  std::vector<uint32_t> ends;
  for (uint32_t k = 1; k <= block::kMaxRecordTokens; ++k) {
    if ((marks.ends[(k - 1) / 64].load() >> (k - 1) % 64 & 1) != 0) ends.push_back(k);
  }
  return ends;
}

FoundPage PageOf(block::Extent extent, const block::PageRecord& record, const std::byte* space_id) {
  FoundPage page;
  page.extent = extent;
  page.holders = record.marks.holders.load();
  for (uint32_t i = 0; i < record.content_keys; ++i) {
    const block::ContentRecord& from = record.content[i];
    block::ContentKey& key = page.keys.emplace_back();
    key.start = from.start;
    key.item_offset = from.item_offset;
    key.length = from.length;
    std::copy(std::begin(from.digest), std::end(from.digest), key.digest.begin());
  }
  PageContent& content = page.content;
  std::copy(space_id, space_id + content.name.space.size(), content.name.space.begin());
  std::copy(std::begin(record.hash), std::end(record.hash), content.name.block.begin());
  std::copy(std::begin(record.parent), std::end(record.parent), content.parent.begin());
  content.name.group = record.group;
  content.name.part = record.part;
  content.name.rung = record.rung;
  content.name.tokens = record.tokens;
  content.space = record.space;
  content.serial = record.serial;
  content.parent_serial = record.parent_serial;
  content.first_token = record.first_token;
  content.page_bytes = record.page_bytes;
  content.payload_bytes = record.payload_bytes;
  content.check = record.page_check;
  content.tokens = {.tokens = {record.token, record.block_tokens}, .content = page.keys};
  content.ends = EndsOf(record.marks);
  content.last_use = record.marks.last_use.load();
  return page;
}

}  // namespace

absl::Status Arena::Adopt(uint64_t epoch) {
  base::MutexLock lock(mutex_);
  PREFIXD_RETURN_IF_ERROR(AdoptSpaces());
  // Nobody but this daemon can lock a slot that is unlocked here.
  const uint64_t locked_slots = file_->locks().LockedSlots();
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    PREFIXD_RETURN_IF_ERROR(AdoptSlab(i, locked_slots));
  }
  PunchIdle();
  std::sort(found_.begin(), found_.end(), [](const FoundPage& a, const FoundPage& b) {
    return std::tie(a.content.last_use, a.content.first_token) <
           std::tie(b.content.last_use, b.content.first_token);
  });
  Shrink();
  file_->header()->epoch.store(epoch, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Arena::AdoptSpaces() {
  const block::ArenaHeader& header = *file_->header();
  table_bytes_ = SharedFile::FixedBytes(header);
  spaces_backed_ = block::kExtentUnit;
  spaces_ = std::make_unique<SpaceTable>(file_->spaces(), header.spaces_bytes);
  PREFIXD_RETURN_IF_ERROR(spaces_->Adopt(
      [this](uint64_t bytes) PREFIXD_REQUIRES(mutex_) { return BackSpaces(bytes); }));
  const uint64_t backed_end = header.spaces_offset + spaces_backed_;
  file_->Punch(backed_end, header.records_offset - backed_end);
  return absl::OkStatus();
}

absl::Status Arena::AdoptSlab(uint32_t index, uint64_t locked_slots) {
  const block::SlabRecord& record = *file_->slab(index);
  if (!block::InService(record.service.load(std::memory_order_acquire))) return absl::OkStatus();
  Slab& slab = slabs_[index];
  slab.in_service = true;
  ++in_service_;
  idle_slabs_.erase(index);
  const uint64_t extent_bytes =
      uint64_t{static_cast<uint32_t>(record.extent_units.load(std::memory_order_acquire))} *
      block::kExtentUnit;
  slab.record_bytes = extent_bytes == 0 ? 0 : RecordBytes(extent_bytes);
  table_bytes_ += slab.record_bytes;
  const uint64_t records = file_->RecordsOffset(index);
  if (!file_->BackTables(records, slab.record_bytes)) {
    return absl::ResourceExhaustedError("arena: the tmpfs has no room for records");
  }
  // A daemon that was killed while it sized the records left more memory.
  file_->Punch(records + slab.record_bytes, file_->header()->slab_record_bytes - slab.record_bytes);
  if (extent_bytes == 0) {
    free_slabs_.insert(index);
    return absl::OkStatus();
  }
  Cut(index, extent_bytes);
  std::vector<uint32_t> free_slots;
  for (const uint32_t slot : slab.free_slots) {
    const block::Extent extent = {.offset = index * shape_.slab_bytes + slot * extent_bytes,
                                  .bytes = extent_bytes};
    slab.used[slot] = AdoptRecord(extent, locked_slots);
    if (!slab.used[slot]) free_slots.push_back(slot);
  }
  slab.free_slots = std::move(free_slots);
  // PopulateAhead touches no payload, so a slab that has some counts as populated.
  if (slab.used_slots() > 0) slab.populated_bytes = shape_.slab_bytes;
  extent_bytes_ += slab.used_slots() * extent_bytes;
  extents_ += slab.used_slots();
  if (slab.free_slots.empty() || slab.used_slots() == 0) CloseSlab(index);
  if (slab.used_slots() == 0) EmptySlab(index);
  return absl::OkStatus();
}

// Returns whether the extent stays allocated.
bool Arena::AdoptRecord(block::Extent extent, uint64_t locked_slots) {
  block::PageRecord* const record = RecordOf(extent);
  const uint64_t held_by = record->marks.ReadHolders();
  const uint64_t holders = held_by & locked_slots;
  if (holders != held_by) record->marks.SetHolders(holders);
  const block::SpaceRecord* const space = spaces_->At(record->space);
  if (Published(*record) && space != nullptr &&
      record->space_generation == space->generation.load() && record->page_bytes > 0 &&
      record->page_bytes <= extent.bytes && record->payload_bytes <= record->page_bytes) {
    found_.push_back(PageOf(extent, *record, space->id));
    return true;
  }
  RetireRecord(record);
  if (holders != 0) {
    held_.push_back({.extent = extent, .holders = holders});
    return true;
  }
  ClearMarks(&record->marks);
  return false;
}

// Punches idle slabs: a daemon that was killed while one entered or left service left memory there.
void Arena::PunchIdle() {
  const uint64_t stride = file_->header()->slab_record_bytes;
  for (auto first = idle_slabs_.begin(); first != idle_slabs_.end();) {
    auto last = first;
    uint64_t count = 1;
    while (++last != idle_slabs_.end() && *last == *first + count) ++count;
    file_->Punch(file_->RecordsOffset(*first), count * stride);
    file_->Punch(file_->DataOffset(*first), count * shape_.slab_bytes);
    first = last;
  }
}

std::vector<FoundPage> Arena::TakeFound() {
  base::MutexLock lock(mutex_);
  return std::move(found_);
}

std::vector<HeldExtent> Arena::TakeHeld() {
  base::MutexLock lock(mutex_);
  return std::move(held_);
}

const std::string& Arena::replaced_why() const {
  static const std::string none;
  return file_ == nullptr ? none : file_->replaced_why();
}

const std::string& Arena::not_spread_why() const {
  static const std::string none;
  return file_ == nullptr ? none : file_->not_spread_why();
}

absl::StatusOr<int> Arena::OpenReadOnly() const {
  if (file_ == nullptr) return absl::FailedPreconditionError("arena: private, it has no file");
  PREFIXD_ASSIGN_OR_RETURN(base::Descriptor opened, file_->OpenReadOnly());
  return opened.Release();
}

SlotLocks* Arena::slot_locks() const { return file_ == nullptr ? nullptr : &file_->locks(); }
int Arena::fd() const { return file_ == nullptr ? -1 : file_->fd(); }
block::ArenaHeader* Arena::header() const { return file_ == nullptr ? nullptr : file_->header(); }
block::SlotRecord* Arena::slot_records() const {
  return file_ == nullptr ? nullptr : file_->slots();
}
uint64_t Arena::data_offset() const { return file_ == nullptr ? 0 : header()->data_offset; }
uint64_t Arena::file_bytes() const { return file_ == nullptr ? 0 : header()->file_bytes; }

}  // namespace prefixd::ram
