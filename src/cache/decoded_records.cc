#include "cache/decoded_records.h"

#include <utility>

namespace prefixd::cache {
namespace {

// A batch is some 100 KB decoded; a few bridge what one side does in bursts.
constexpr size_t kBatchRecords = 256;
constexpr size_t kMostBatches = 8;

}  // namespace

DecodedRecords::DecodedRecords(const ssd::SegmentStore* store)
    : thread_([this, store] { Read(*store); }) {}

DecodedRecords::~DecodedRecords() {
  {
    base::MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

bool DecodedRecords::Give(std::vector<DecodedRecord> batch) {
  base::MutexLock lock(mutex_);
  while (batches_.size() >= kMostBatches && !stop_) changed_.Wait(mutex_);
  if (stop_) return false;
  batches_.push_back(std::move(batch));
  changed_.NotifyAll();
  return true;
}

void DecodedRecords::Read(const ssd::SegmentStore& store) {
  std::vector<DecodedRecord> batch;
  uint64_t unreadable = 0;
  absl::Status status = store.ForEachRecord(
      [&](uint64_t sequence, std::span<const std::byte> bytes) {
        batch.push_back({sequence, DecodeRecord(bytes)});
        if (batch.size() < kBatchRecords) return absl::OkStatus();
        const bool wanted = Give(std::exchange(batch, {}));
        return wanted ? absl::OkStatus() : absl::CancelledError("recover: stopping");
      },
      &unreadable);
  if (!batch.empty()) Give(std::move(batch));
  base::MutexLock lock(mutex_);
  done_ = true;
  status_ = std::move(status);
  unreadable_ = unreadable;
  changed_.NotifyAll();
}

std::vector<DecodedRecord> DecodedRecords::Next() {
  base::MutexLock lock(mutex_);
  while (batches_.empty() && !done_) changed_.Wait(mutex_);
  if (batches_.empty()) return {};
  std::vector<DecodedRecord> batch = std::move(batches_.front());
  batches_.pop_front();
  changed_.NotifyAll();
  return batch;
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
