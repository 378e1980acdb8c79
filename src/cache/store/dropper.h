// Segments that left the SSD tier: they are out of the index, and a thread removes their files.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/mutex.h"
#include "cache/context.h"

namespace prefixd::cache {

// Thread-safe. The store must be open before anything is added.
class Dropper {
 public:
  explicit Dropper(Context* context) : context_(context) {}

  void Add(const ssd::SegmentInfo& segment) PREFIXD_EXCLUDES(mutex_);
  // The segments of the store that are not being dropped, oldest first.
  std::vector<ssd::SegmentInfo> Staying() const PREFIXD_EXCLUDES(mutex_);
  uint64_t BytesGoing() const PREFIXD_EXCLUDES(mutex_);
  uint64_t ended() const PREFIXD_EXCLUDES(mutex_);  // drops, also failed ones
  // Waits until more than `seen` drops have ended; without a thread it does the next one itself.
  // False: no segment is being dropped, its files do not go, or Stop.
  bool WaitBeyond(uint64_t seen) PREFIXD_EXCLUDES(mutex_);
  uint64_t failed() const { return failed_; }  // drops whose files the disk did not remove

  // Drops the first segment, if there is one. Callers take turns.
  bool Step() PREFIXD_EXCLUDES(step_mutex_) PREFIXD_EXCLUDES(mutex_);
  void Run() PREFIXD_EXCLUDES(mutex_);  // until Stop
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  Context* const context_;
  std::atomic<uint64_t> failed_{0};
  std::atomic<bool> runs_{false};  // Run() was called
  // Held during a step, or two would drop one segment.
  base::Mutex step_mutex_{"Dropper::step_mutex_"};
  mutable base::Mutex mutex_;
  base::CondVar wake_, done_;
  std::deque<ssd::SegmentInfo> going_ PREFIXD_GUARDED_BY(mutex_);  // the first one's files now
  uint64_t ended_ PREFIXD_GUARDED_BY(mutex_) = 0;
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
};

}  // namespace prefixd::cache
