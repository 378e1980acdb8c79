// Reads the records of one segment in sequence order and skips damage.
//
// Not thread-safe.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "rocksdb/iterator.h"

#include "ssd/segment_store.h"
#include "ssd/table_db.h"

namespace prefixd::ssd {

class RecordReader {
 public:
  // Counts its readahead in `*memory_bytes` as long as it lives. `table_db` and `memory_bytes` must
  // outlive the reader.
  RecordReader(const TableDb& table_db, const SegmentInfo& segment,
               std::atomic<uint64_t>* memory_bytes);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // Visits every record that can be read. Call it once. Stops at the first error of `visit` and
  // returns it.
  absl::Status ForEach(
      const std::function<absl::Status(uint64_t, std::span<const std::byte>)>& visit);
  // Records that the closing marker counts and that were not visited; 1 if the closing marker could
  // not be read.
  uint64_t unreadable() const { return unreadable_; }

 private:
  bool ReadMarker(uint64_t sequence, std::string* value) const;
  bool CountRecords();
  bool Seek(uint64_t sequence);
  uint64_t SkipDamage(uint64_t sequence);

  const TableDb& table_db_;
  const SegmentInfo segment_;
  std::atomic<uint64_t>* const memory_bytes_;
  std::unique_ptr<rocksdb::Iterator> entry_;
  uint64_t records_ = 0;  // by the closing marker
  uint64_t unreadable_ = 0;
};

}  // namespace prefixd::ssd
