// The records of the SSD tier, read and decoded by a thread of their own a few batches ahead of who
// puts them into the tree: each of the two takes about half of a load.
//
// One consumer. The destructor ends the thread, whatever is left.
#pragma once
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "cache/record.h"
#include "ssd/segment_store.h"

namespace prefixd::cache {

struct DecodedRecord {
  uint64_t sequence = 0;
  absl::StatusOr<BlockRecord> record;
};

class DecodedRecords {
 public:
  explicit DecodedRecords(const ssd::SegmentStore* store);
  ~DecodedRecords();
  DecodedRecords(const DecodedRecords&) = delete;
  DecodedRecords& operator=(const DecodedRecords&) = delete;

  // The next ones, by sequence; none: there are no more.
  std::vector<DecodedRecord> Next() PREFIXD_EXCLUDES(mutex_);
  // After the last: what ended the reading, and what could not be read.
  absl::Status status() const PREFIXD_EXCLUDES(mutex_);
  uint64_t unreadable() const PREFIXD_EXCLUDES(mutex_);

 private:
  void Read(const ssd::SegmentStore& store) PREFIXD_EXCLUDES(mutex_);
  // False: nobody wants more.
  bool Give(std::vector<DecodedRecord> batch) PREFIXD_EXCLUDES(mutex_);

  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::deque<std::vector<DecodedRecord>> batches_ PREFIXD_GUARDED_BY(mutex_);
  bool done_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stop_ PREFIXD_GUARDED_BY(mutex_) = false;
  absl::Status status_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t unreadable_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses the others
};

}  // namespace prefixd::cache
