// Builds the index from what an earlier daemon left, on SSD and in the arena, while requests are
// served.
//
// Until it is whole Segments::mutex is held: nothing is written, dropped or cleared under it.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/status/status.h"

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/load/loader.h"
#include "cache/room/room.h"
#include "cache/store/segments.h"
#include "cache/tables/sessions.h"
#include "cache/tables/spaces.h"

namespace prefixd::cache {

class Legacy;  // what an earlier daemon left in the arena

// Thread-safe.
class IndexLoader {
 public:
  IndexLoader(Context* context, Sessions* sessions, Spaces* spaces, Room* room, Segments* segments,
              Loader* loader)
      : context_(context),
        sessions_(sessions),
        spaces_(spaces),
        room_(room),
        segments_(segments),
        loader_(loader) {}

  // Loads the index. Returns when it is whole, or after Options::open_within, when a thread loads
  // on. Call it once, with the store open if there is one, before any other thread works.
  absl::Status Start();
  // Loads the index from a store that was opened late: Tier::LoadLate.
  absl::Status LoadLate(const std::function<absl::Status()>& take)
      PREFIXD_EXCLUDES(segments_->mutex);
  // True once the index is whole; false at the deadline.
  bool WaitLoaded(base::Deadline deadline) PREFIXD_EXCLUDES(mutex_);
  // Ends the loading, whole or not.
  void Stop();

 private:
  void Begin() PREFIXD_EXCLUDES(mutex_);
  void End() PREFIXD_EXCLUDES(mutex_);
  absl::Status Load(Legacy* legacy) PREFIXD_EXCLUDES(segments_->mutex);
  absl::Status Recover()
      PREFIXD_REQUIRES(segments_->mutex);  // from the records on SSD (recover.cc)
  // From the records in the arena, after those on SSD; null: nothing was left there (adopt.cc).
  void Adopt(Legacy* legacy);
  void AdoptSpaces();
  std::shared_ptr<Legacy> FindLegacy();
  void SayNotWhole(const absl::Status& status);  // of loading; nothing if it went well

  Context* const context_;
  Sessions* const sessions_;
  Spaces* const spaces_;
  Room* const room_;
  Segments* const segments_;
  Loader* const loader_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;

  base::Mutex mutex_;
  base::CondVar loaded_;
  bool loading_ PREFIXD_GUARDED_BY(mutex_) = true;
};

}  // namespace prefixd::cache
