// The thread that writes dirty blocks ahead of need, and those who wait for what it writes.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/patience.h"
#include "cache/room/spill_demand.h"
#include "cache/store/segments.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// Thread-safe.
class Spiller {
 public:
  Spiller(Context* context, Segments* segments, SpillDemand* demand)
      : context_(context), segments_(segments), demand_(demand) {}

  // Waits until all blocks are on SSD. False: a segment fails, they are not dirty and not there, or
  // patience is over.
  bool WaitForSsd(const std::vector<index::BlockRef>& blocks, const Patience& patience);

  // The index is whole and the store is open: spilling may begin.
  void LetWork();
  // Writes one segment of the present round. False: the round is over. Callers take turns.
  bool Step() PREFIXD_EXCLUDES(step_mutex_);
  void Run();  // until Stop
  void Stop();

 private:
  // Writes a page, reads it back and deletes it, so that a disk that does not do what it says is
  // known before anything depends on it (self_test.cc).
  void SelfTest();

  Context* const context_;
  Segments* const segments_;
  SpillDemand* const demand_;
  WorkSignal may_start_;
  std::atomic<bool> may_work_{false};
  std::atomic<bool> runs_{false};    // Run() was called
  std::atomic<bool> failed_{false};  // the last segment could not be written
  base::Mutex step_mutex_;           // held during a step
  std::optional<uint64_t> round_start_
      PREFIXD_GUARDED_BY(step_mutex_);  // the store's last sequence
};

}  // namespace prefixd::cache
