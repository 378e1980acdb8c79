// RocksDB as the store uses it: one database with the column families `default` (metadata), `pages`
// and `records`, its options, and the translation of its errors and keys.
//
// Thread-safe after Open.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rocksdb/cache.h"
#include "rocksdb/db.h"
#include "rocksdb/options.h"
#include "rocksdb/status.h"
#include "rocksdb/write_batch.h"

#include "base/mutex.h"
#include "block/page_check.h"
#include "ssd/file_layer.h"
#include "ssd/segment_store.h"

namespace prefixd::ssd {

// Translates a status: OK, NotFound, DataLoss for what is damaged or gone, Unavailable for an I/O
// error.
absl::Status FromRocks(const rocksdb::Status& status, const std::string& what);

// Translates the status of opening a database: DataLoss only for what is damaged or gone, else
// Unavailable.
absl::Status FromOpening(const rocksdb::Status& status, const std::string& directory);

inline constexpr size_t kSequenceKeyBytes = 8;
inline constexpr size_t kPageKeyBytes = kSequenceKeyBytes + sizeof(block::PageHeader);

// 8 bytes, big-endian: bytewise order is sequence order.
std::string SequenceKey(uint64_t sequence);
// The key of a page from format version 3 on: its sequence, then its header.
std::string PageKey(uint64_t sequence, const block::PageHeader& header);
// Returns the sequence of a key of either kind; 0 if `key` is neither.
uint64_t SequenceOf(const rocksdb::Slice& key);

struct TableDbOptions {
  std::string directory;
  bool direct_io = true;
  uint64_t block_cache_bytes = 0;
  std::shared_ptr<FileLayer> files = nullptr;  // null: the machine's own file system
  OnUnknownFormat on_unknown_format = nullptr;
};

// What RocksDB reports while it works. Thread-safe.
struct TableEvents {
  std::atomic<bool> changes_failed{false};
  base::Mutex mutex;
  std::map<std::string, std::string> ingested PREFIXD_GUARDED_BY(mutex);  // path before -> path now
};

// Returns what a database works on: `files` (null = the machine's own file system) through
// table_files.h.
std::unique_ptr<rocksdb::Env> TableEnv(const FileLayer* files,
                                       OnUnknownFormat on_unknown_format = nullptr);

// Set when a database is closed and its directory can be opened again. Thread-safe.
class ClosedFlag {
 public:
  void Set() PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }
  // Waits until it is set. Returns false if `deadline` passes first.
  bool Wait(base::Deadline deadline) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    while (!closed_) {
      if (!changed_.WaitUntil(mutex_, deadline)) return closed_;
    }
    return true;
  }

 private:
  base::Mutex mutex_;
  base::CondVar changed_;
  bool closed_ PREFIXD_GUARDED_BY(mutex_) = false;
};

struct TableDb;
using TableDbPtr = std::shared_ptr<TableDb>;  // closed by the last user

struct TableDb {
  // Opens or creates. The caller holds the directory's lock.
  static absl::StatusOr<std::unique_ptr<TableDb>> Open(const TableDbOptions& options);
  TableDb() = default;
  ~TableDb();
  TableDb(const TableDb&) = delete;
  TableDb& operator=(const TableDb&) = delete;

  rocksdb::ReadOptions read_options() const;
  // Returns what an SstFileWriter of pages or records takes, direct I/O included.
  rocksdb::EnvOptions file_options() const;
  // Returns table_options for a file of values of about this size, so that a block's memory is
  // allocated once.
  rocksdb::Options table_options_for(uint64_t value_bytes) const;
  uint64_t MemoryBytes() const;
  // Returns where an ingested file of pages stands now, and forgets it. Empty if it was not
  // ingested.
  std::string TakeIngested(const std::string& incoming_path);
  // Writes to the metadata and syncs it. Unavailable once a change failed.
  absl::Status WriteMeta(rocksdb::WriteBatch* batch, const std::string& what)
      PREFIXD_EXCLUDES(meta_mutex);

  bool direct_io = false;
  std::shared_ptr<FileLayer> files;   // outlives `env`
  std::unique_ptr<rocksdb::Env> env;  // outlives the database
  std::shared_ptr<rocksdb::Cache> block_cache;
  rocksdb::Options table_options;  // of pages and records
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* meta = nullptr;     // owned
  rocksdb::ColumnFamilyHandle* pages = nullptr;    // owned
  rocksdb::ColumnFamilyHandle* records = nullptr;  // owned

  // changes_failed: a change failed in a way that RocksDB does not get over. Reads go on; changes
  // need the database opened anew. After an error while its manifest was written RocksDB refuses
  // changes or, told to resume, stumbles over its own file numbers. After one in its log, Open
  // would find nothing behind the error.
  const std::shared_ptr<TableEvents> events = std::make_shared<TableEvents>();
  const std::shared_ptr<ClosedFlag> closed = std::make_shared<ClosedFlag>();  // set by ~TableDb
  base::Mutex meta_mutex;  // one write of metadata at a time, so that none follows a failed one
};

}  // namespace prefixd::ssd
