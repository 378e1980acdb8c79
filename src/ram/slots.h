// Slots: which sessions map the arena, and whether their processes can still read.
//
// A session that maps the arena owns one of 64 slots, and its worker holds the slot's lock
// (ram/slot_locks.h) for as long as it may be reading. The kernel drops the lock with the worker,
// and the lock outlives the daemon. No timers.
//
// Thread-safe.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "base/checksum.h"
#include "base/mutex.h"
#include "base/peer.h"
#include "ram/arena.h"

namespace prefixd::ram {

using SessionKey = std::array<std::byte, 16>;
// Returns what the arena's file stores of a key: it verifies a key but does not reveal it.
base::Digest256 KeyHash(const SessionKey& key);

struct HeldSlot {
  uint32_t slot = block::kNoSlot;
  base::Digest256 key_hash{};  // zeros: nobody's key
  base::Peer owner;
};

// Descriptors for a worker; the caller owns them.
struct SlotFiles {
  int arena = -1;  // read-only
  int lock = -1;   // holds the slot's lock for as long as it, or a mapping of it, is open
};

class Slots {
 public:
  explicit Slots(Arena* arena);  // requires arena->shared(); must not outlive it

  // Returns the slots of an earlier daemon's sessions whose lock was held when this object was
  // made. They are in use until Release. Call it once, before Claim.
  std::vector<HeldSlot> Held() const PREFIXD_EXCLUDES(mutex_);

  // Claims a slot that nobody owns and whose lock nobody holds. Returns nullopt if all 64 are taken
  // or no lock file can be made.
  std::optional<uint32_t> Claim(const base::Digest256& key_hash) PREFIXD_EXCLUDES(mutex_);
  // Gives the slot of an earlier session another key.
  void Rename(uint32_t slot, const base::Digest256& key_hash) PREFIXD_EXCLUDES(mutex_);
  // Records whom the files are given to.
  void SetOwner(uint32_t slot, const base::Peer& owner) PREFIXD_EXCLUDES(mutex_);
  absl::StatusOr<SlotFiles> OpenFor(uint32_t slot);
  // Returns whether some process may be reading through a mapping of this slot.
  bool Locked(uint32_t slot) const;
  // Frees the slot. Requires: !Locked(slot), and nothing is held in its name any more.
  void Release(uint32_t slot) PREFIXD_EXCLUDES(mutex_);
  uint32_t in_use() const PREFIXD_EXCLUDES(mutex_);

 private:
  block::SlotRecord* Record(uint32_t slot) const;
  void Free(uint32_t slot) PREFIXD_REQUIRES(mutex_);

  Arena* const arena_;
  mutable base::Mutex mutex_;
  std::array<bool, block::kArenaSlots> taken_ PREFIXD_GUARDED_BY(mutex_){};
};

}  // namespace prefixd::ram
