#include "ram/slots.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/status.h"
#include "ram/slot_locks.h"

namespace prefixd::ram {
namespace {

void Write(block::SlotRecord* record, const base::Digest256& key_hash, const base::Peer& owner,
           uint32_t lock_inode, bool in_use) {
  record->in_use.exchange(0, std::memory_order_acq_rel);
  std::copy(key_hash.begin(), key_hash.end(), record->key_hash);
  record->pid = owner.pid;
  record->pid_namespace = owner.pid_namespace;
  record->uid = owner.uid;
  record->lock_inode = lock_inode;
  record->in_use.store(in_use ? 1 : 0, std::memory_order_release);
}

HeldSlot Read(uint32_t slot, const block::SlotRecord& record) {
  HeldSlot held;
  held.slot = slot;
  // A record that was being written gives no key: nobody can resume it.
  if (record.in_use.load(std::memory_order_acquire) != 1) return held;
  std::copy(std::begin(record.key_hash), std::end(record.key_hash), held.key_hash.begin());
  held.owner = {.pid = record.pid, .uid = record.uid, .pid_namespace = record.pid_namespace};
  return held;
}

}  // namespace

base::Digest256 KeyHash(const SessionKey& key) {
  base::Sha256Stream stream;
  stream.Update(base::AsBytes("prefixd/1/session-key"));
  stream.Update(key);
  return stream.Finish();
}

Slots::Slots(Arena* arena) : arena_(arena) {
  base::MutexLock lock(mutex_);
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    taken_[slot] = Locked(slot);
    if (!taken_[slot]) Free(slot);
  }
}

block::SlotRecord* Slots::Record(uint32_t slot) const { return arena_->slot_records() + slot; }

void Slots::Free(uint32_t slot) {
  Write(Record(slot), {}, {}, 0, /*in_use=*/false);
  arena_->slot_locks()->Remove(slot);
}

std::vector<HeldSlot> Slots::Held() const {
  base::MutexLock lock(mutex_);
  std::vector<HeldSlot> held;
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    if (taken_[slot]) held.push_back(Read(slot, *Record(slot)));
  }
  return held;
}

std::optional<uint32_t> Slots::Claim(const base::Digest256& key_hash) {
  base::MutexLock lock(mutex_);
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    if (taken_[slot]) continue;
    if (!arena_->slot_locks()->Renew(slot).ok()) return std::nullopt;
    taken_[slot] = true;
    Write(Record(slot), key_hash, {}, arena_->slot_locks()->Inode(slot), /*in_use=*/true);
    return slot;
  }
  return std::nullopt;
}

void Slots::Rename(uint32_t slot, const base::Digest256& key_hash) {
  base::MutexLock lock(mutex_);
  const base::Peer owner = Read(slot, *Record(slot)).owner;
  Write(Record(slot), key_hash, owner, arena_->slot_locks()->Inode(slot), /*in_use=*/true);
}

void Slots::SetOwner(uint32_t slot, const base::Peer& owner) {
  base::MutexLock lock(mutex_);
  const base::Digest256 key_hash = Read(slot, *Record(slot)).key_hash;
  Write(Record(slot), key_hash, owner, arena_->slot_locks()->Inode(slot), /*in_use=*/true);
}

absl::StatusOr<SlotFiles> Slots::OpenFor(uint32_t slot) {
  PREFIXD_ASSIGN_OR_RETURN(base::Descriptor lock, arena_->slot_locks()->OpenLocked(slot));
  PREFIXD_ASSIGN_OR_RETURN(const int arena, arena_->OpenReadOnly());
  return SlotFiles{.arena = arena, .lock = lock.Release()};
}

bool Slots::Locked(uint32_t slot) const { return arena_->slot_locks()->Locked(slot); }

void Slots::Release(uint32_t slot) {
  arena_->ForgetDevicePins(slot);
  base::MutexLock lock(mutex_);
  Free(slot);
  taken_[slot] = false;
}

uint32_t Slots::in_use() const {
  base::MutexLock lock(mutex_);
  return static_cast<uint32_t>(std::count(taken_.begin(), taken_.end(), true));
}

}  // namespace prefixd::ram
