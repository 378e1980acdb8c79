// Brings the pages of blocks that other hosts stored into the arena.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/far/far.h"
#include "cache/far/finder.h"
#include "cache/load/load_model.h"
#include "cache/load/refused.h"
#include "cache/room/page_records.h"
#include "cache/room/room.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// A bundle, and those of its pages that are expected (kPromoting in the index).
struct FarLoad {
  SpacePtr space;
  FoundBundle bundle;
  std::vector<index::PageInfo> expected;
};

// Thread-safe. Several threads Run() it. Every page that it is given is finished or failed, also
// after Stop.
class Fetcher {
 public:
  static constexpr int kThreads = 3;

  // `changed` is notified whenever a page became readable or failed.
  Fetcher(Context* context, Far* far, Room* room, PageRecords* records, Refused* refused,
          LoadModel* model, WorkSignal* changed)
      : context_(context),
        far_(far),
        room_(room),
        records_(records),
        refused_(refused),
        model_(model),
        changed_(changed) {}

  // The loads of one request, in order. Requests take turns.
  void Enqueue(std::vector<FarLoad> loads) PREFIXD_EXCLUDES(mutex_);
  bool Step() PREFIXD_EXCLUDES(mutex_);  // false: there is nothing to do
  void Run() PREFIXD_EXCLUDES(mutex_);   // until Stop
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  struct Batch {
    std::deque<FarLoad> loads;
    int64_t begun_us = 0;
    base::Deadline until;  // what has not come by then is given up
    std::atomic<size_t> left{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<bool> failed{false};
  };
  class Places;

  bool Next(FarLoad* load, std::shared_ptr<Batch>* batch) PREFIXD_EXCLUDES(mutex_);
  absl::Status Load(const FarLoad& load, base::Deadline until);
  // Reads the bundle into the places and checks it.
  absl::Status ReadInto(const FarLoad& load, const Places& places, base::Deadline until);
  absl::Status Finish(const index::PageInfo& page, block::Extent extent);
  void Fail(const FarLoad& load, size_t first, const absl::Status& why);
  void Count(const absl::Status& why);

  Context* const context_;
  Far* const far_;
  Room* const room_;
  PageRecords* const records_;
  Refused* const refused_;
  LoadModel* const model_;
  WorkSignal* const changed_;

  base::Mutex mutex_;
  base::CondVar wake_;
  std::deque<std::shared_ptr<Batch>> queue_ PREFIXD_GUARDED_BY(mutex_);
  bool stopped_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stopping_{false};
};

}  // namespace prefixd::cache
