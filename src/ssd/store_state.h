// What a store and the segment it is writing share.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "ssd/segment_store.h"
#include "ssd/store_directory.h"
#include "ssd/table_db.h"

namespace prefixd::ssd {

// Thread-safe. The mutex is not held across I/O.
struct StoreState {
  std::unique_ptr<StoreDirectory> directory;  // outlives the database: it holds the lock
  std::unique_ptr<TableDb> table_db;
  std::atomic<uint64_t> last_sequence{0};  // raised by the one open writer
  std::atomic<uint64_t> writer_bytes{0};   // buffers of the one open writer

  mutable base::Mutex mutex;
  bool writing PREFIXD_GUARDED_BY(mutex) = false;
  std::vector<SegmentInfo> segments PREFIXD_GUARDED_BY(mutex);  // by sequence
};

// The segments of the database's live files; deletes pages files that belong to none, which a crash
// inside DropSegment leaves behind.
//
// The records file of a segment starts and ends with a marker, so its smallest and largest key,
// which the manifest has, are the segment's sequences; the pages file inside this range is its
// other half. No table file is opened.
absl::StatusOr<std::vector<SegmentInfo>> FindSegments(const TableDb& table_db);

// One at a time: `state->writing` is set; Finish() or the destructor clears it.
std::unique_ptr<SegmentWriter> MakeSegmentWriter(StoreState* state);

}  // namespace prefixd::ssd
