// Slot locks: each session that maps the arena has a file of its own, on which its worker's
// description has a hold (os/holds.h). The kernel drops it with the last holder of that description
// (os/held_file.h), within a millisecond of SIGKILL. It outlives the daemon.
//
// The files are empty and stand in the folder ARENA.locks, which only the daemon's user enters.
// Each flavour of os gives them other names, since neither sees the holds of the other: a daemon of
// the other flavour takes a slot in use for one whose file is gone. The daemon that owns the arena
// holds its own lock (flock) on ARENA.locks/owner, because anybody who reads the arena can lock the
// arena itself. A worker gets a read-only descriptor of its own session's file and of no other, so
// its locks say nothing about other sessions. A file serves one session, so nobody keeps a
// descriptor of a file that a later session uses.
//
// Thread-safe. Whoever owns the arena owns the folder.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "base/descriptor.h"
#include "base/file_lock.h"
#include "base/mutex.h"
#include "block/arena_file.h"

namespace prefixd::ram {

class SlotLocks {
 public:
  // Opens the folder of this arena and the files in it; makes the folder if it is not there.
  // FailedPrecondition if somebody else's folder is there, or something that is no folder.
  static absl::StatusOr<std::unique_ptr<SlotLocks>> Open(const std::string& arena_path);
  ~SlotLocks();  // files stay; the owner's lock is given back
  SlotLocks(const SlotLocks&) = delete;
  SlotLocks& operator=(const SlotLocks&) = delete;

  // Returns the folder of the locks of this arena, which only the daemon's user enters.
  static std::string FolderOf(const std::string& arena_path);

  // Takes the owner's lock. Unavailable if another process has it; the message names that process.
  absl::Status Own(const base::LockWait& wait);
  // Returns whether nobody has the owner's lock of this arena at this moment.
  static bool HasNoOwner(const std::string& arena_path);

  // Returns whether some description holds the slot's lock. Also true if the kernel does not tell:
  // the safe assumption is that somebody is reading. False if the slot has no file.
  bool Locked(uint32_t slot) const PREFIXD_EXCLUDES(mutex_);
  uint64_t LockedSlots() const;  // bit s: Locked(s)
  // Returns a number that tells the slot's file from earlier files of its name; 0 if there is none.
  uint32_t Inode(uint32_t slot) const PREFIXD_EXCLUDES(mutex_);
  // Makes a new file for the slot's next session, which nobody else ever had.
  absl::Status Renew(uint32_t slot) PREFIXD_EXCLUDES(mutex_);
  // Opens a read-only description that carries the lock, for the worker. Requires: Renew(slot) was
  // called.
  absl::StatusOr<base::Descriptor> OpenLocked(uint32_t slot) const PREFIXD_EXCLUDES(mutex_);
  // Removes the slot's file, whoever may hold a lock on it.
  void Remove(uint32_t slot) PREFIXD_EXCLUDES(mutex_);
  void RemoveAll();

 private:
  SlotLocks(const std::string& arena_path, base::Descriptor directory);

  const std::string arena_path_, folder_;
  const base::Descriptor directory_;
  base::Descriptor owner_;  // locked; none = not yet
  mutable base::Mutex mutex_;
  std::array<base::Descriptor, block::kArenaSlots> files_
      PREFIXD_GUARDED_BY(mutex_);  // none = no file
};

}  // namespace prefixd::ram
