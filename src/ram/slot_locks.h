// Slot locks: for each session that maps the arena a file of its own, on which its worker's
// description holds a lock (OFD, shared). The kernel drops the lock with the last descriptor and
// mapping of that description, within a millisecond of SIGKILL, and it outlives the daemon.
//
// The files are empty and stand in the folder ARENA.locks, which only the daemon's user enters. So
// does ARENA.locks/owner, on which the daemon that owns the arena holds its own lock (flock): the
// arena itself anybody can lock who reads it. A worker gets a read-only descriptor of its own
// session's file and of no other: what it locks says nothing of anybody else. A file serves one
// session; so nobody keeps a descriptor of a file that a later session uses.
//
// Thread-safe. Whoever owns the arena owns the folder.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "base/file_lock.h"
#include "base/mutex.h"
#include "block/arena_file.h"
#include "ram/descriptor.h"

namespace prefixd::ram {

class SlotLocks {
 public:
  // The folder of this arena, made when it is not there, with the files that stand in it.
  // FailedPrecondition: somebody else's folder stands there, or something that is none.
  static absl::StatusOr<std::unique_ptr<SlotLocks>> Open(const std::string& arena_path);
  ~SlotLocks();  // files stay; the owner's lock is given back
  SlotLocks(const SlotLocks&) = delete;
  SlotLocks& operator=(const SlotLocks&) = delete;

  // Takes the owner's lock. Unavailable: another process has it, and who.
  absl::Status Own(const base::LockWait& wait);
  // Nobody has the owner's lock of this arena, at this moment.
  static bool HasNoOwner(const std::string& arena_path);

  // Some description holds the slot's lock. True, too, when the kernel does not tell: to be on the
  // safe side somebody is reading.
  bool Locked(uint32_t slot) const PREFIXD_EXCLUDES(mutex_);
  uint64_t LockedSlots() const;  // bit s: Locked(s)
  // Tells the slot's file from others that stood under its name; 0: there is none.
  uint32_t Inode(uint32_t slot) const PREFIXD_EXCLUDES(mutex_);
  // A new file for the slot's next session, that nobody else ever had.
  absl::Status Renew(uint32_t slot) PREFIXD_EXCLUDES(mutex_);
  // A read-only description that carries the lock, for the worker. Requires: Renew(slot) before.
  absl::StatusOr<Descriptor> OpenLocked(uint32_t slot) const PREFIXD_EXCLUDES(mutex_);
  // The slot has no file any more, whoever may hold a lock on it.
  void Remove(uint32_t slot) PREFIXD_EXCLUDES(mutex_);
  void RemoveAll();

 private:
  SlotLocks(const std::string& arena_path, Descriptor directory);

  const std::string arena_path_, folder_;
  const Descriptor directory_;
  Descriptor owner_;  // locked; none = not yet
  mutable base::Mutex mutex_;
  std::array<Descriptor, block::kArenaSlots> files_ PREFIXD_GUARDED_BY(mutex_);  // none = no file
};

}  // namespace prefixd::ram
