// The directory of a segment store: made private, held by one process, measured as the filesystem
// counts it. Knows no RocksDB.
//
// Layout: RocksDB's own files, `prefixd.lock` (held with flock while the store is open,
// names the process that does), `prefixd.instance` (the store's name: 32 hex digits made up when it
// was), `prefixd.key` (of the room above, cache/hash_key.h), `prefixd.borders` and its second
// (cleared_borders.h), and `incoming/` with the files that are being written. What is found in
// incoming/ at Open is left over from a crash: what was whole has moved out of it. `damaged-<UTC
// time>/` holds a database that could not be opened, as it was.
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

// Names in it that are not RocksDB's.
inline constexpr const char* kIncomingName = "incoming";
inline constexpr const char* kBordersName = "prefixd.borders";
inline constexpr const char* kSecondBordersName = "prefixd.borders.2";
inline constexpr const char* kDamagedPrefix = "damaged-";

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
  bool HasDatabase() const;  // RocksDB has begun one
  // RocksDB's files, all of them: everything in the directory but the lock, the instance, the
  // key, the borders and folders.
  absl::Status RemoveStore() const;
  // The same files into a folder of their own, whose name has the time. Gives its path. Of such
  // folders the last kMaxDamaged stay, earlier ones are removed.
  static constexpr size_t kMaxDamaged = 2;
  absl::StatusOr<std::string> MoveAside() const;
  struct Damaged {
    uint64_t count = 0, bytes = 0;  // allocated
  };
  Damaged DamagedCopies() const;
  // The oldest. NotFound: there is none.
  absl::Status RemoveDamaged() const;
  // Whether a file in incoming/ can be written and read with O_DIRECT.
  bool SupportsDirectIo() const;
  // Bytes of the files of the store whose names begin or end with one of these.
  uint64_t BytesOf(std::initializer_list<std::string_view> names) const;
  uint64_t FreeBytes() const;  // in its filesystem, for this user; 0 when it cannot be told
  // Allocated blocks of every file below the directory, a file with two names once.
  uint64_t AllocatedBytes() const;

 private:
  StoreDirectory(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  const std::string path_;
  const int lock_fd_;  // owned
};

}  // namespace prefixd::ssd
