// Between those who need room in RAM and the one who makes pages clean by writing them: neither
// knows the other.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// Thread-safe.
class SpillDemand {
 public:
  explicit SpillDemand(const Context* context) : context_(context) {}

  // --- for those who need room ---
  void Ask() { wanted_.Notify(); }
  // Everything may be written now, also what admission would refuse: an allocation waits in vain.
  void Insist() { insisted_ = true; }
  // Whether free slabs and clean extents that are not spared are together below so many eighths of
  // the arena; or, once the index has three quarters of what it may have, whether clean extents are
  // below so many eighths of clean and dirty ones. The spiller starts below kStartEighths and goes
  // on to kGoOnEighths, so that allocations and commits seldom wait for the disk.
  bool CleanBelow(uint64_t eighths) const;
  static constexpr uint64_t kStartEighths = 2, kGoOnEighths = 3;
  struct Rounds {
    uint64_t ended = 0;
    uint64_t vain = 0;  // those of them that wrote nothing
  };
  Rounds rounds() const PREFIXD_EXCLUDES(mutex_);
  // Waits until a round ends that is not in `seen`, Stop, or `until`. Returns the rounds by then.
  Rounds WaitBeyond(const Rounds& seen, base::Deadline until) PREFIXD_EXCLUDES(mutex_);

  // --- for the spiller ---
  WorkSignal& wanted() { return wanted_; }
  bool TakeInsisted() { return insisted_.exchange(false); }
  void RoundEnded(bool vain) PREFIXD_EXCLUDES(mutex_);
  void Stop() PREFIXD_EXCLUDES(mutex_);
  bool stopped() const { return wanted_.stopped(); }

 private:
  const Context* const context_;
  WorkSignal wanted_;
  std::atomic<bool> insisted_{false};
  mutable base::Mutex mutex_;
  base::CondVar ended_;
  Rounds rounds_ PREFIXD_GUARDED_BY(mutex_);
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
};

}  // namespace prefixd::cache
