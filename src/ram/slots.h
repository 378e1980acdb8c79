// Slots: which sessions map the arena, and whether their process still can read.
//
// A session that maps the arena owns one of 64 slots and holds an OFD read lock on the slot's byte
// of the arena file. The lock belongs to the open file description that the daemon hands over: the
// kernel drops it when the worker's last descriptor and mapping are gone, within a millisecond of
// SIGKILL, and it outlives the daemon. No timers.
//
// Thread-safe.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "block/ids.h"
#include "ram/arena.h"

namespace prefixd::ram {

using SessionKey = std::array<std::byte, 16>;

struct HeldSlot {
  uint32_t slot = block::kNoSlot;
  block::SessionId session;  // of an earlier daemon
  SessionKey key{};
  uint64_t pid = 0;
};

class Slots {
 public:
  explicit Slots(Arena* arena);  // requires arena->shared(); must not outlive it

  // Slots of an earlier daemon's sessions whose byte was locked when this object was made. They are
  // in use until Release. Once, before Claim. A session of 0 cannot be resumed.
  std::vector<HeldSlot> Held() const PREFIXD_EXCLUDES(mutex_);

  // A slot that nobody owns and whose byte is not locked. nullopt: all 64 are taken.
  std::optional<uint32_t> Claim(block::SessionId session, const SessionKey& key)
      PREFIXD_EXCLUDES(mutex_);
  // The slot of an earlier session goes on under a new one.
  void Rename(uint32_t slot, block::SessionId session, const SessionKey& key, uint64_t pid)
      PREFIXD_EXCLUDES(mutex_);
  void SetPid(uint32_t slot, uint64_t pid) PREFIXD_EXCLUDES(mutex_);
  // A read-only descriptor of the arena that carries the slot's lock. Close it after passing it on.
  absl::StatusOr<int> OpenFor(uint32_t slot);
  // Some process may be reading through a mapping of this slot.
  bool Locked(uint32_t slot) const;
  // Requires: !Locked(slot), and nothing is held in its name any more.
  void Release(uint32_t slot) PREFIXD_EXCLUDES(mutex_);
  uint32_t in_use() const PREFIXD_EXCLUDES(mutex_);

 private:
  block::SlotRecord* Record(uint32_t slot) const;

  Arena* const arena_;
  mutable base::Mutex mutex_;
  std::array<bool, block::kArenaSlots> taken_ PREFIXD_GUARDED_BY(mutex_){};
};

}  // namespace prefixd::ram
