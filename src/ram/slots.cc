#include "ram/slots.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "ram/descriptor.h"
#include "ram/slot_lock.h"

namespace prefixd::ram {
namespace {

// Session 0 names nobody: what stands behind it does not count.
void Write(block::SlotRecord* record, block::SessionId session, const SessionKey& key,
           uint64_t epoch, uint64_t pid) {
  record->session.exchange(0, std::memory_order_acq_rel);
  std::copy(key.begin(), key.end(), record->key);
  record->epoch = epoch;
  record->pid = pid;
  record->session.store(session.value, std::memory_order_release);
}

}  // namespace

Slots::Slots(Arena* arena) : arena_(arena) {
  base::MutexLock lock(mutex_);
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    taken_[slot] = Locked(slot);
    if (!taken_[slot]) Write(Record(slot), {}, {}, 0, 0);
  }
}

block::SlotRecord* Slots::Record(uint32_t slot) const { return arena_->slot_records() + slot; }

std::vector<HeldSlot> Slots::Held() const {
  base::MutexLock lock(mutex_);
  std::vector<HeldSlot> held;
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    if (!taken_[slot]) continue;
    const block::SlotRecord& record = *Record(slot);
    HeldSlot& one = held.emplace_back();
    one.slot = slot;
    one.session = {record.session.load(std::memory_order_acquire)};
    std::copy(std::begin(record.key), std::end(record.key), one.key.begin());
    one.pid = record.pid;
  }
  return held;
}

std::optional<uint32_t> Slots::Claim(block::SessionId session, const SessionKey& key) {
  base::MutexLock lock(mutex_);
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    if (taken_[slot] || Locked(slot)) continue;
    taken_[slot] = true;
    Write(Record(slot), session, key, arena_->header()->epoch.load(), 0);
    return slot;
  }
  return std::nullopt;
}

void Slots::Rename(uint32_t slot, block::SessionId session, const SessionKey& key, uint64_t pid) {
  base::MutexLock lock(mutex_);
  Write(Record(slot), session, key, arena_->header()->epoch.load(), pid);
}

void Slots::SetPid(uint32_t slot, uint64_t pid) {
  base::MutexLock lock(mutex_);
  Record(slot)->pid = pid;
}

absl::StatusOr<int> Slots::OpenFor(uint32_t slot) {
  PREFIXD_ASSIGN_OR_RETURN(const int fd, arena_->OpenReadOnly());
  Descriptor opened(fd);
  struct flock lock = SlotLock(slot, F_RDLCK);
  if (fcntl(opened.get(), F_OFD_SETLK, &lock) == 0) return opened.Release();
  return absl::InternalError(
      absl::StrCat("arena: cannot lock the byte of slot ", slot, ": ", strerror(errno)));
}

bool Slots::Locked(uint32_t slot) const { return SlotLocked(arena_->fd(), slot); }

void Slots::Release(uint32_t slot) {
  base::MutexLock lock(mutex_);
  Write(Record(slot), {}, {}, 0, 0);
  taken_[slot] = false;
}

uint32_t Slots::in_use() const {
  base::MutexLock lock(mutex_);
  return static_cast<uint32_t>(std::count(taken_.begin(), taken_.end(), true));
}

}  // namespace prefixd::ram
