// What a store and the segment it is writing share.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "ssd/cleared_borders.h"
#include "ssd/direct_read.h"
#include "ssd/segment_store.h"
#include "ssd/store_directory.h"
#include "ssd/table_db.h"

namespace prefixd::ssd {

// Thread-safe. `mutex` is not held across I/O.
struct StoreState {
  // `files` null: the machine's own file system.
  StoreState(const std::string& path, const std::shared_ptr<FileLayer>& files)
      : borders(path, files.get()) {}

  // Returns the database. If an error of the disk closed it, waits a little for its last user and
  // opens it anew. Unavailable while that does not succeed.
  absl::StatusOr<TableDbPtr> Table() PREFIXD_EXCLUDES(mutex);
  // Returns the database for a change. If an earlier change failed, opens it anew once the disk
  // takes writes again, which is a restart for RocksDB. Reads go on until then.
  absl::StatusOr<TableDbPtr> TableForChanges() PREFIXD_EXCLUDES(mutex);

  void CloseTable() PREFIXD_EXCLUDES(mutex);  // only before anybody else knows the store

  uint64_t LastOnDisk() const PREFIXD_EXCLUDES(mutex) {  // the last sequence; 0 = no segment
    base::MutexLock lock(mutex);
    return segments.empty() ? 0 : segments.back().last_sequence;
  }

  // Writes a file of `bytes`, syncs it and removes it. Unavailable if the disk does not take it.
  absl::Status TryWriting(uint64_t bytes) const;

  std::unique_ptr<StoreDirectory> directory;  // outlives the database: it holds the lock
  TableDbOptions table_options;               // holds the file layer
  BorderFiles borders;
  std::optional<base::Hash128> key_id{};
  DirectReads direct_reads;
  bool reads_directly = true;
  std::atomic<uint64_t> last_sequence{0};  // raised by the one open writer
  std::atomic<uint64_t> writer_bytes{0};   // buffers of the one open writer
  std::atomic<uint64_t> reader_bytes{0};   // readahead of records

  base::Mutex open_mutex{"StoreState::open_mutex"};  // held while the database is opened
  base::HoldGauge longest_hold;
  mutable base::Mutex mutex{&longest_hold};
  TableDbPtr table_db PREFIXD_GUARDED_BY(mutex);
  // Flag of the previous database, which its last user closes; null if there was none.
  std::shared_ptr<ClosedFlag> closed PREFIXD_GUARDED_BY(mutex);
  bool writing PREFIXD_GUARDED_BY(mutex) = false;
  std::vector<SegmentInfo> segments PREFIXD_GUARDED_BY(mutex);  // by sequence
};

// Returns the segments of the database's live files. Deletes pages files that belong to none, which
// a crash inside DropSegment leaves behind.
//
// The records file of a segment starts and ends with a marker, so its smallest and largest key,
// which the manifest has, are the segment's sequences; the pages file inside this range is its
// other half. No table file is opened.
// `pages_paths` receives the paths of the pages files by their segment's first sequence.
absl::StatusOr<std::vector<SegmentInfo>> FindSegments(const TableDb& table_db,
                                                      std::map<uint64_t, std::string>* pages_paths);

// Makes the one writer of a store. Requires: `state->writing` is set. Finish() or the destructor
// clears it.
std::unique_ptr<SegmentWriter> MakeSegmentWriter(StoreState* state, TableDbPtr table);

}  // namespace prefixd::ssd
