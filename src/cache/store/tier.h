// The SSD tier's start: with the cache, or later, when its disk can be had; and borders of cleared
// spaces that wait for a disk that refuses them.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "cache/context.h"
#include "cache/store/segments.h"
#include "cache/store/spiller.h"
#include "cache/tables/limits.h"
#include "cache/tables/spaces.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// Thread-safe, but for what says otherwise.
class Tier {
 public:
  // Takes the opened store (by the callback that it is given, under Segments::mutex) and loads the
  // index from it while requests are served. Returns the callback's status.
  using LoadLate = std::function<absl::Status(const std::function<absl::Status()>& take)>;

  Tier(Context* context, Spaces* spaces, LimitedSpaces* limited, Segments* segments,
       Spiller* spiller, SpillDemand* demand)
      : context_(context),
        spaces_(spaces),
        limited_(limited),
        segments_(segments),
        spiller_(spiller),
        demand_(demand) {}

  // Opens the store with the cache, before any thread runs. Fails only with what time does not
  // mend; other errors are logged, and Step() tries again.
  absl::Status Start();
  // From now on what is on SSD of these spaces, or of every one, counts no more. False: that is not
  // on disk yet. The caller holds Segments::mutex, so that no segment is under way.
  bool SetBorders(std::span<const block::SpaceId> spaces, bool all) PREFIXD_EXCLUDES(clears_mutex_);
  bool border_waits() const { return border_waits_; }

  // Opens the store that could not be opened, or saves borders that were not saved.
  absl::Status Step(const LoadLate& load_late);
  void Run(const LoadLate& load_late);  // until Stop
  void Stop() { work_.Stop(); }

 private:
  absl::StatusOr<std::unique_ptr<ssd::SegmentStore>> OpenStore(const base::LockWait& wait);
  absl::Status CheckKey() const;
  void SayFindings(const ssd::SegmentStore& opened);
  void SayClosed(const absl::Status& status);
  absl::Status Take(std::unique_ptr<ssd::SegmentStore> opened) PREFIXD_REQUIRES(segments_->mutex);
  absl::Status AddWaitingBorders(ssd::SegmentStore* opened) PREFIXD_EXCLUDES(clears_mutex_);
  using Entries = std::vector<std::pair<std::string, std::string>>;
  void LoadSpaces(const Entries& identities);
  void LoadLimits(const Entries& entries);  // of spaces that have none yet
  absl::Status OpenLate(const LoadLate& load_late);
  bool HasWork() const { return context_->store == nullptr || !context_->store->BordersSaved(); }

  Context* const context_;
  Spaces* const spaces_;
  LimitedSpaces* const limited_;
  Segments* const segments_;
  Spiller* const spiller_;
  SpillDemand* const demand_;
  WorkSignal work_;
  std::string closed_why_;  // that was logged; of the thread that starts, then of the tier's
  struct WaitingClears {
    bool all = false;
    std::set<block::SpaceId> spaces;
  };
  base::Mutex clears_mutex_;
  WaitingClears clears_ PREFIXD_GUARDED_BY(clears_mutex_);  // until the store can be opened
  std::atomic<bool> border_waits_{false};                   // or until its disk takes them
};

}  // namespace prefixd::cache
