// Page records and the space table of a shared arena.
#include "ram/records.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "ram/arena.h"
#include "ram/shared_file.h"

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
  // The check may cover the tokens that are not there as well, and nothing of an earlier page
  // stays.
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
  record->path = content.path;
  record->parent_path = content.parent_path;
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
  // exchange: what is written behind it is not moved before it.
  record->state.exchange(kFree, std::memory_order_acq_rel);
}

void ClearMarks(block::PageMarks* marks) {
  marks->holders.store(0, std::memory_order_relaxed);
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
    recorded = recorded && content.space < spaces_.size();
    if (recorded) generation = spaces_[content.space]->generation.load(std::memory_order_relaxed);
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
  for (uint32_t i = 0; i < spaces_.size(); ++i) {
    if (std::memcmp(spaces_[i]->id, id.data(), id.size()) == 0) return i;
  }
  // Behind it there is always room for the record that ends the table.
  const uint64_t end =
      spaces_used_ + sizeof(block::SpaceRecord) + base::AlignUp(identity.size(), 8);
  const uint64_t with_end = end + sizeof(block::SpaceRecord);
  if (identity.empty() || with_end > file_->header()->spaces_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "arena: an identity of ", identity.size(), " bytes does not fit into the space table, ",
        spaces_used_, " of ", file_->header()->spaces_bytes, " bytes in use"));
  }
  PREFIXD_RETURN_IF_ERROR(BackSpaces(with_end));
  auto* const record = reinterpret_cast<block::SpaceRecord*>(file_->spaces() + spaces_used_);
  auto* const text = reinterpret_cast<std::byte*>(record + 1);
  reinterpret_cast<block::SpaceRecord*>(file_->spaces() + end)->bytes.store(0);
  std::memcpy(text, identity.data(), identity.size());
  std::copy(id.begin(), id.end(), record->id);
  record->generation.store(1, std::memory_order_relaxed);
  const auto bytes = static_cast<uint32_t>(identity.size());
  record->check = SpaceCheck(record->id, text, bytes);
  record->bytes.store(bytes, std::memory_order_release);
  spaces_.push_back(record);
  spaces_used_ = end;
  return static_cast<uint32_t>(spaces_.size() - 1);
}

void Arena::ClearSpace(uint32_t space) {
  base::MutexLock lock(mutex_);
  if (space < spaces_.size()) spaces_[space]->generation.fetch_add(1, std::memory_order_release);
}

std::vector<FoundSpace> Arena::Spaces() const {
  base::MutexLock lock(mutex_);
  std::vector<FoundSpace> spaces;
  for (const block::SpaceRecord* record : spaces_) {
    FoundSpace& space = spaces.emplace_back();
    std::copy(std::begin(record->id), std::end(record->id), space.id.begin());
    space.identity.assign(reinterpret_cast<const char*>(record + 1), record->bytes.load());
  }
  return spaces;
}

}  // namespace prefixd::ram
