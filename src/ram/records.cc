// Page records and the space table of a shared arena.
#include "ram/records.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "ram/arena.h"
#include "ram/shared_file.h"
#include "ram/space_table.h"

namespace prefixd::ram {
namespace {

constexpr uint32_t kFree = static_cast<uint32_t>(block::RecordState::kFree);
constexpr uint32_t kPublished = static_cast<uint32_t>(block::RecordState::kPublished);

void WriteMarks(const PageContent& content, block::PageMarks* marks) {
  uint64_t ends[2] = {};
  for (const uint32_t end : content.ends) {
    if (end >= 1 && end <= block::kMaxRecordTokens)
      ends[(end - 1) / 64] |= uint64_t{1} << (end - 1) % 64;
  }
  marks->last_use.store(content.last_use, std::memory_order_relaxed);
  for (size_t i = 0; i < 2; ++i) marks->ends[i].store(ends[i], std::memory_order_relaxed);
}

void WriteSequence(const block::SequenceView& sequence, block::PageRecord* record) {
  record->block_tokens = static_cast<uint32_t>(sequence.tokens.size());
  record->content_keys = static_cast<uint32_t>(sequence.content.size());
  std::copy(sequence.tokens.begin(), sequence.tokens.end(), record->token);
  // Clears the unused rest: the check may cover it, and nothing of an earlier page may stay.
  std::fill(record->token + sequence.tokens.size(), std::end(record->token), 0u);
  std::fill(record->content + sequence.content.size(), std::end(record->content),
            block::ContentRecord{});
  for (size_t i = 0; i < sequence.content.size(); ++i) {
    const block::ContentKey& key = sequence.content[i];
    block::ContentRecord& to = record->content[i];
    to.start = key.start;
    to.length = key.length;
    to.item_offset = key.item_offset;
    to.reserved = 0;
    std::copy(key.digest.begin(), key.digest.end(), to.digest);
  }
}

void WriteContent(const PageContent& content, uint32_t generation, block::PageRecord* record) {
  record->space = content.space;
  record->space_generation = generation;
  record->group = content.name.group;
  record->part = content.name.part;
  record->rung = content.name.rung;
  record->zero = 0;
  record->tokens = content.name.tokens;
  record->first_token = content.first_token;
  record->page_bytes = content.page_bytes;
  record->payload_bytes = content.payload_bytes;
  record->page_check = content.check;
  std::copy(content.name.block.begin(), content.name.block.end(), record->hash);
  std::copy(content.parent.begin(), content.parent.end(), record->parent);
  record->serial = content.serial;
  record->parent_serial = content.parent_serial;
  WriteSequence(content.tokens, record);
}

}  // namespace

uint64_t RecordCheck(const block::PageRecord& record) {
  constexpr size_t kBegin = offsetof(block::PageRecord, space);
  const size_t end =
      record.content_keys == 0
          ? offsetof(block::PageRecord, token) + record.block_tokens * sizeof(uint32_t)
          : offsetof(block::PageRecord, content) +
                record.content_keys * sizeof(block::ContentRecord);
  return base::Xxh3({reinterpret_cast<const std::byte*>(&record) + kBegin, end - kBegin});
}

uint64_t SpaceCheck(const std::byte* id, const std::byte* identity, uint32_t bytes) {
  return base::Xxh3({identity, bytes}, base::Xxh3({id, sizeof(block::SpaceRecord::id)}));
}

void RetireRecord(block::PageRecord* record) {
  // An exchange: the compiler moves no later write before it (src/README.md, Locks).
  record->state.exchange(kFree, std::memory_order_acq_rel);
}

void ClearMarks(block::PageMarks* marks) {
  marks->SetHolders(0);
  marks->last_use.store(0, std::memory_order_relaxed);
  for (std::atomic<uint64_t>& ends : marks->ends) ends.store(0, std::memory_order_relaxed);
}

block::PageRecord* Arena::RecordOf(block::Extent extent) const {
  return file_->records(extent.offset / shape_.slab_bytes) +
         extent.offset % shape_.slab_bytes / extent.bytes;
}

block::PageMarks* Arena::marks(block::Extent extent) const {
  return file_ == nullptr ? nullptr : &RecordOf(extent)->marks;
}

void Arena::Publish(block::Extent extent, const PageContent& content) {
  if (file_ == nullptr) return;
  uint32_t generation = 0;
  bool recorded = content.tokens.tokens.size() <= block::kMaxRecordTokens &&
                  content.tokens.content.size() <= block::kMaxRecordContent;
  {
    base::MutexLock lock(mutex_);
    SlotOf(extent);  // aborts unless it is allocated
    const block::SpaceRecord* const space = spaces_->At(content.space);
    recorded = recorded && space != nullptr;
    if (recorded) generation = space->generation.load(std::memory_order_relaxed);
  }
  block::PageRecord* const record = RecordOf(extent);
  RetireRecord(record);
  WriteMarks(content, &record->marks);
  if (!recorded) return;
  WriteContent(content, generation, record);
  record->check = RecordCheck(*record);
  record->state.store(kPublished, std::memory_order_release);
}

absl::Status Arena::BackSpaces(uint64_t bytes) {
  const uint64_t want = base::AlignUp(bytes, block::kExtentUnit);
  if (want <= spaces_backed_) return absl::OkStatus();
  const uint64_t more = want - spaces_backed_;
  if (!MakeRoom(more, kNoSpace)) {
    return absl::ResourceExhaustedError("arena: no room for another page of the space table");
  }
  const uint64_t offset = file_->header()->spaces_offset + spaces_backed_;
  if (!file_->BackTables(offset, more)) {
    file_->Punch(offset, more);
    return absl::ResourceExhaustedError("arena: the tmpfs has no room for the space table");
  }
  spaces_backed_ = want;
  table_bytes_ += more;
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Arena::AddSpace(const block::SpaceId& id, const std::string& identity) {
  if (file_ == nullptr) return kNoSpace;
  base::MutexLock lock(mutex_);
  return spaces_->Add(
      id, identity, [this](uint64_t bytes) PREFIXD_REQUIRES(mutex_) { return BackSpaces(bytes); });
}

void Arena::RemoveSpace(uint32_t space) {
  base::MutexLock lock(mutex_);
  if (file_ == nullptr) return;
  spaces_->Remove(space);
  const uint64_t want = base::AlignUp(spaces_->needed_bytes(), block::kExtentUnit);
  // Keeps memory for twice the need, so that a table that grows and shrinks by a page asks for
  // none.
  if (spaces_backed_ <= 2 * want) return;
  file_->Punch(file_->header()->spaces_offset + want, spaces_backed_ - want);
  table_bytes_ -= spaces_backed_ - want;
  spaces_backed_ = want;
}

void Arena::ClearSpace(uint32_t space) {
  base::MutexLock lock(mutex_);
  if (file_ != nullptr) spaces_->Clear(space);
}

std::vector<FoundSpace> Arena::Spaces() const {
  base::MutexLock lock(mutex_);
  std::vector<FoundSpace> spaces;
  if (file_ == nullptr) return spaces;
  for (const auto& [id, place] : spaces_->places()) {
    spaces.push_back({.id = id, .identity = spaces_->IdentityOf(place)});
  }
  return spaces;
}

}  // namespace prefixd::ram
