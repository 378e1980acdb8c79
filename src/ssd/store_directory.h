// The directory of a segment store: made private, held by one process, measured as the filesystem
// counts it. Knows no RocksDB.
//
// Layout: RocksDB's own files, `prefixd.lock` (held with flock while the store is open,
// names the process that does),
// `prefixd.instance` (the store's name: 32 hex digits made up when it was), and `incoming/` with
// the table files that are being written. What is found in incoming/ at Open is left over from a
// crash: an ingested file has moved out of it.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/file_lock.h"

namespace prefixd::ssd {

// Thread-safe. The lock is given up by the destructor.
class StoreDirectory {
 public:
  // Creates `path` (its parent must exist) with mode 0700, or takes an existing directory that is
  // empty or already a store and makes it 0700. FailedPrecondition when another store has it open
  // or when it holds anything else; PermissionDenied or Unavailable naming it when it cannot be
  // written, Unavailable when its lock is held by no living process, also after `wait`.
  static absl::StatusOr<std::unique_ptr<StoreDirectory>> Open(const std::string& path,
                                                              const base::LockWait& wait = {});
  ~StoreDirectory();
  StoreDirectory(const StoreDirectory&) = delete;
  StoreDirectory& operator=(const StoreDirectory&) = delete;

  const std::string& path() const { return path_; }
  // A file in incoming/.
  std::string IncomingPath(const std::string& name) const;
  absl::Status RemoveIncoming() const;
  // RocksDB's files, all of them: everything in the directory but the lock, the instance and what
  // was there before.
  absl::Status RemoveStore() const;
  // Whether a file in incoming/ can be written and read with O_DIRECT.
  bool SupportsDirectIo() const;
  uint64_t FreeBytes() const;  // in its filesystem, for this user; 0 when it cannot be told
  // Allocated blocks of every file below the directory, a file with two names once.
  uint64_t AllocatedBytes() const;

 private:
  StoreDirectory(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  const std::string path_;
  const int lock_fd_;  // owned
};

}  // namespace prefixd::ssd
