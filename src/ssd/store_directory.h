// The directory of a segment store: made private, held by one process, measured as the filesystem
// counts it. Knows no RocksDB.
//
// Layout: RocksDB's own files, `prefixd.lock` (held with flock while the store is open; names the
// process that holds it), `prefixd.instance` (the store's name: 32 hex digits made up when it was
// created), `prefixd.key` (of the room above, cache/hash_key.h), `prefixd.borders` and
// `prefixd.borders.2` (cleared_borders.h), and `incoming/` with the files that are being written.
// Files found in incoming/ at Open are left over from a crash: whole ones have moved out of it.
// `damaged-<UTC time>/` holds a database that could not be opened, as it was.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/file_lock.h"

namespace prefixd::ssd {

// Names in the directory that are not RocksDB's.
inline constexpr const char* kIncomingName = "incoming";
inline constexpr const char* kBordersName = "prefixd.borders";
inline constexpr const char* kSecondBordersName = "prefixd.borders.2";
inline constexpr const char* kDamagedPrefix = "damaged-";

// Returns FailedPrecondition if the directory is neither empty nor a store, or a store with a link
// or a file of another user in it: names it, its owner and what to do. Unavailable if it cannot be
// listed. Thread-safe.
absl::Status CheckOurs(const std::string& path);

// Thread-safe. The destructor gives up the lock.
class StoreDirectory {
 public:
  // Creates `path` (its parent must exist) with mode 0700, or takes an existing directory that is
  // empty or already a store and makes it 0700. FailedPrecondition if another store has it open or
  // it holds anything else. PermissionDenied or Unavailable, naming it, if it cannot be written.
  // Unavailable if its lock is still held after `wait` and no living holder is known.
  static absl::StatusOr<std::unique_ptr<StoreDirectory>> Open(const std::string& path,
                                                              const base::LockWait& wait = {});
  ~StoreDirectory();
  StoreDirectory(const StoreDirectory&) = delete;
  StoreDirectory& operator=(const StoreDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Returns the path of a file in incoming/.
  std::string IncomingPath(const std::string& name) const;
  absl::Status RemoveIncoming() const;
  bool HasDatabase() const;  // whether RocksDB has begun one
  // Removes all of RocksDB's files: everything in the directory but the lock, the instance, the
  // key, the borders and folders.
  absl::Status RemoveStore() const;
  // Moves the same files into a folder of their own, whose name has the time, and returns its path.
  // Keeps the last kMaxDamaged such folders and removes earlier ones.
  static constexpr size_t kMaxDamaged = 2;
  absl::StatusOr<std::string> MoveAside() const;
  struct Damaged {
    uint64_t count = 0, bytes = 0;  // allocated
  };
  Damaged DamagedCopies() const;
  // Removes the oldest such folder. NotFound if there is none.
  absl::Status RemoveDamaged() const;
  // Returns whether a file in incoming/ can be written and read past the page cache.
  bool SupportsDirectIo() const;
  // Returns the bytes of the store's files whose names begin or end with one of `names`.
  uint64_t BytesOf(std::initializer_list<std::string_view> names) const;
  uint64_t FreeBytes() const;  // in its filesystem, for this user; 0 if that cannot be told
  // Returns the allocated bytes of every file below the directory; a file with two names counts
  // once.
  uint64_t AllocatedBytes() const;

 private:
  StoreDirectory(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  const std::string path_;
  const int lock_fd_;  // owned
};

}  // namespace prefixd::ssd
