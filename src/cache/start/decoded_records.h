// The records of the SSD tier, read and decoded by a thread of their own a few batches ahead of who
// puts them into the tree: each of the two takes about half of a load.
//
// What waits is at most about 1 MiB, and a batch on either side; all of it stands in the gauge.
//
// One consumer. The destructor ends the thread, whatever is left.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "cache/store/record.h"
#include "ssd/segment_store.h"

namespace prefixd::cache {

struct DecodedRecord {
  uint64_t sequence = 0;
  absl::StatusOr<BlockRecord> record;
};

class DecodedRecords {
 public:
  // `gauge` has the bytes of what is decoded and not yet asked beyond.
  DecodedRecords(const ssd::SegmentStore* store, std::atomic<uint64_t>* gauge);
  ~DecodedRecords();
  DecodedRecords(const DecodedRecords&) = delete;
  DecodedRecords& operator=(const DecodedRecords&) = delete;

  // The next ones, by sequence; none: there are no more. The ones before are the gauge's no longer.
  std::vector<DecodedRecord> Next() PREFIXD_EXCLUDES(mutex_);
  // After the last: what ended the reading, and what could not be read.
  absl::Status status() const PREFIXD_EXCLUDES(mutex_);
  uint64_t unreadable() const PREFIXD_EXCLUDES(mutex_);

 private:
  struct Batch {
    std::vector<DecodedRecord> records;
    uint64_t bytes = 0;
  };
  void Read(const ssd::SegmentStore& store) PREFIXD_EXCLUDES(mutex_);
  void Add(DecodedRecord record, Batch* batch);
  // False: nobody wants more.
  bool Give(Batch batch) PREFIXD_EXCLUDES(mutex_);

  std::atomic<uint64_t>* const gauge_;
  mutable base::Mutex mutex_;
  base::CondVar changed_;
  std::deque<Batch> batches_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t waiting_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // of batches_
  uint64_t given_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;    // of what Next returned last
  bool done_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stop_ PREFIXD_GUARDED_BY(mutex_) = false;
  absl::Status status_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t unreadable_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses the others
};

}  // namespace prefixd::cache
