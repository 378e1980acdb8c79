#include "ram/space_table.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "ram/records.h"

namespace prefixd::ram {
namespace {

constexpr uint64_t kRecord = sizeof(block::SpaceRecord);
constexpr uint64_t kRoomUnit = 8;

uint64_t RoomOf(uint64_t extent) { return extent & UINT32_MAX; }
uint64_t BytesOf(uint64_t extent) { return extent >> 32; }
uint64_t Pack(uint64_t room, uint64_t bytes) { return bytes << 32 | room; }

}  // namespace

absl::Status SpaceTable::Adopt(const Back& back) {
  std::vector<std::pair<uint64_t, uint64_t>> free;  // added once the table's end is known
  while (true) {
    PREFIXD_RETURN_IF_ERROR(back(needed_bytes()));
    block::SpaceRecord* const record = RecordAt(used_);
    const uint64_t extent = record->extent.load(std::memory_order_acquire);
    const uint64_t room = RoomOf(extent), bytes = BytesOf(extent);
    const uint64_t end = used_ + room;
    if (room < kRecord || room % kRoomUnit != 0 || bytes > room - kRecord ||
        end + kRecord > bytes_) {
      break;
    }
    PREFIXD_RETURN_IF_ERROR(back(end + kRecord));
    const auto* const identity = reinterpret_cast<const std::byte*>(record + 1);
    if (bytes > 0 &&
        record->check != SpaceCheck(record->id, identity, static_cast<uint32_t>(bytes))) {
      break;
    }
    const uint64_t offset = std::exchange(used_, end);
    if (bytes == 0) {
      free.emplace_back(offset, room);
      continue;
    }
    block::SpaceId id;
    std::copy(std::begin(record->id), std::end(record->id), id.begin());
    by_id_[id] = static_cast<uint32_t>(offset / kRoomUnit);
    last_generation_ = std::max(last_generation_, record->generation.load());
  }
  EndAt(used_);
  for (const auto& [offset, room] : free) AddFree(offset, room);
  return absl::OkStatus();
}

// Everything behind `offset` is unused from here on.
void SpaceTable::EndAt(uint64_t offset) {
  used_ = offset;
  RecordAt(offset)->extent.store(0, std::memory_order_release);
}

void SpaceTable::AddFree(uint64_t offset, uint64_t room) {
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + room) {
    room += next->second;
    free_by_room_.erase({next->second, next->first});
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      room += before->second;
      free_by_room_.erase({before->second, before->first});
      free_.erase(before);
    }
  }
  if (offset + room == used_) return EndAt(offset);
  RecordAt(offset)->extent.store(Pack(room, 0), std::memory_order_release);
  free_[offset] = room;
  free_by_room_.insert({room, offset});
}

bool SpaceTable::TakeFree(uint64_t need, uint64_t* offset, uint64_t* room) {
  const auto found = free_by_room_.lower_bound({need, 0});
  if (found == free_by_room_.end()) return false;
  *room = found->first;
  *offset = found->second;
  free_.erase(*offset);
  free_by_room_.erase(found);
  const uint64_t rest = *room - need;
  if (rest < kRecord) return true;
  // A walk of the table sees it once the record before it ends here.
  RecordAt(*offset + need)->extent.store(Pack(rest, 0), std::memory_order_release);
  free_[*offset + need] = rest;
  free_by_room_.insert({rest, *offset + need});
  *room = need;
  return true;
}

absl::Status SpaceTable::Append(uint64_t need, const Back& back, uint64_t* offset) {
  const uint64_t end = used_ + need;
  // Behind the new record there must be room for the one that ends the table.
  if (end + kRecord > bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat("arena: an identity of ", need - kRecord,
                                                     " bytes does not fit into the space table, ",
                                                     used_, " of ", bytes_, " bytes in use"));
  }
  PREFIXD_RETURN_IF_ERROR(back(end + kRecord));
  *offset = used_;
  RecordAt(end)->extent.store(0, std::memory_order_relaxed);
  used_ = end;
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> SpaceTable::Add(const block::SpaceId& id, const std::string& identity,
                                         const Back& back) {
  if (const auto known = by_id_.find(id); known != by_id_.end()) return known->second;
  if (identity.empty()) return absl::InvalidArgumentError("arena: an identity of no bytes");
  const uint64_t need = kRecord + base::AlignUp(uint64_t{identity.size()}, kRoomUnit);
  uint64_t offset = 0, room = need;
  if (!TakeFree(need, &offset, &room)) PREFIXD_RETURN_IF_ERROR(Append(need, back, &offset));
  block::SpaceRecord* const record = RecordAt(offset);
  auto* const text = reinterpret_cast<std::byte*>(record + 1);
  std::memcpy(text, identity.data(), identity.size());
  std::copy(id.begin(), id.end(), record->id);
  record->generation.store(++last_generation_, std::memory_order_relaxed);
  record->check = SpaceCheck(record->id, text, static_cast<uint32_t>(identity.size()));
  record->extent.store(Pack(room, identity.size()), std::memory_order_release);
  return by_id_[id] = static_cast<uint32_t>(offset / kRoomUnit);
}

void SpaceTable::Remove(uint32_t place) {
  const block::SpaceRecord* const record = At(place);
  if (record == nullptr) return;
  block::SpaceId id;
  std::copy(std::begin(record->id), std::end(record->id), id.begin());
  by_id_.erase(id);
  AddFree(uint64_t{place} * kRoomUnit, RoomOf(record->extent.load()));
}

void SpaceTable::Clear(uint32_t place) {
  if (At(place) == nullptr) return;
  RecordAt(uint64_t{place} * kRoomUnit)
      ->generation.store(++last_generation_, std::memory_order_release);
}

const block::SpaceRecord* SpaceTable::At(uint32_t place) const {
  const uint64_t offset = uint64_t{place} * kRoomUnit;
  if (offset >= used_) return nullptr;
  const block::SpaceRecord* const record = RecordAt(offset);
  block::SpaceId id;
  std::copy(std::begin(record->id), std::end(record->id), id.begin());
  const auto found = by_id_.find(id);
  return found != by_id_.end() && found->second == place ? record : nullptr;
}

std::string SpaceTable::IdentityOf(uint32_t place) const {
  const block::SpaceRecord* const record = RecordAt(uint64_t{place} * kRoomUnit);
  return {reinterpret_cast<const char*>(record + 1), BytesOf(record->extent.load())};
}

}  // namespace prefixd::ram
