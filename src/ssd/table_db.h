// RocksDB as the store uses it: one database with the column families `default` (metadata), `pages`
// and `records`, its options, and the translation of its errors and keys.
//
// Thread-safe after Open.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rocksdb/cache.h"
#include "rocksdb/db.h"
#include "rocksdb/options.h"
#include "rocksdb/status.h"

namespace prefixd::ssd {

// OK, NotFound, DataLoss for what is damaged or gone, Unavailable for an I/O error.
absl::Status FromRocks(const rocksdb::Status& status, const std::string& what);

// 8 bytes, big-endian: bytewise order is sequence order.
std::string SequenceKey(uint64_t sequence);
// 0 when `key` is not 8 bytes.
uint64_t SequenceOf(const rocksdb::Slice& key);

struct TableDbOptions {
  std::string directory;
  bool direct_io = true;
  uint64_t block_cache_bytes = 0;
};

struct TableDb {
  // Opens or creates. The caller holds the directory's lock.
  static absl::StatusOr<std::unique_ptr<TableDb>> Open(const TableDbOptions& options);
  TableDb() = default;
  ~TableDb();
  TableDb(const TableDb&) = delete;
  TableDb& operator=(const TableDb&) = delete;

  rocksdb::ReadOptions read_options() const;
  // What an SstFileWriter of pages or records takes, direct I/O included.
  rocksdb::EnvOptions file_options() const;
  uint64_t MemoryBytes() const;

  bool direct_io = false;
  std::shared_ptr<rocksdb::Cache> block_cache;
  rocksdb::Options table_options;  // of pages and records
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* meta = nullptr;     // owned
  rocksdb::ColumnFamilyHandle* pages = nullptr;    // owned
  rocksdb::ColumnFamilyHandle* records = nullptr;  // owned
};

}  // namespace prefixd::ssd
