#include "cache/start/decoded_records.h"

#include <utility>

namespace prefixd::cache {
namespace {

constexpr size_t kBatchRecords = 256;
constexpr uint64_t kBatchBytes = 256 << 10;
// A few batches bridge what one side does in bursts.
constexpr uint64_t kMostWaitingBytes = 1 << 20;

}  // namespace

DecodedRecords::DecodedRecords(const ssd::SegmentStore* store, std::atomic<uint64_t>* gauge)
    : gauge_(gauge), thread_([this, store] { Read(*store); }) {}

DecodedRecords::~DecodedRecords() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  base::MutexLock lock(mutex_);
  *gauge_ -= waiting_bytes_ + given_bytes_;
}

void DecodedRecords::Add(DecodedRecord record, Batch* batch) {
  uint64_t bytes = sizeof(DecodedRecord);
  if (record.record.ok()) bytes += MemoryOf(record.record->block) - sizeof(record.record->block);
  batch->records.push_back(std::move(record));
  batch->bytes += bytes;
  *gauge_ += bytes;
}

bool DecodedRecords::Give(Batch batch) {
  base::MutexLock lock(mutex_);
  while (waiting_bytes_ >= kMostWaitingBytes && !stop_) changed_.Wait(mutex_);
  waiting_bytes_ += batch.bytes;
  batches_.push_back(std::move(batch));
  changed_.NotifyAll();
  return !stop_;
}

void DecodedRecords::Read(const ssd::SegmentStore& store) {
  Batch batch;
  uint64_t unreadable = 0;
  absl::Status status = store.ForEachRecord(
      [&](uint64_t sequence, std::span<const std::byte> bytes) {
        if (batch.records.empty()) batch.records.reserve(kBatchRecords);
        Add({sequence, DecodeRecord(bytes)}, &batch);
        if (batch.records.size() < kBatchRecords && batch.bytes < kBatchBytes) {
          return absl::OkStatus();
        }
        const bool wanted = Give(std::exchange(batch, {}));
        return wanted ? absl::OkStatus() : absl::CancelledError("recover: stopping");
      },
      &unreadable);
  if (!batch.records.empty()) Give(std::move(batch));
  base::MutexLock lock(mutex_);
  done_ = true;
  status_ = std::move(status);
  unreadable_ = unreadable;
  changed_.NotifyAll();
}

std::vector<DecodedRecord> DecodedRecords::Next() {
  base::MutexLock lock(mutex_);
  *gauge_ -= std::exchange(given_bytes_, 0);
  while (batches_.empty() && !done_) changed_.Wait(mutex_);
  if (batches_.empty()) return {};
  Batch batch = std::move(batches_.front());
  batches_.pop_front();
  waiting_bytes_ -= batch.bytes;
  given_bytes_ = batch.bytes;
  changed_.NotifyAll();
  return std::move(batch.records);
}

absl::Status DecodedRecords::status() const {
  base::MutexLock lock(mutex_);
  return status_;
}

uint64_t DecodedRecords::unreadable() const {
  base::MutexLock lock(mutex_);
  return unreadable_;
}

}  // namespace prefixd::cache
