// Tells sessions which groups of a lease became readable, in group order, and where a lease ends
// because a page turned out bad.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cache/context.h"
#include "cache/load/refused.h"
#include "cache/tables/session.h"
#include "cache/work_signal.h"

namespace prefixd::cache {

// Pages of a lease that were not readable when it was answered, group by group in position order.
struct Watch {
  std::weak_ptr<Session> session;
  std::weak_ptr<Lease> lease;
  block::LeaseId id;
  std::vector<index::PageInfo> pages;  // extent: the place that the answer told; none = not told
  size_t next = 0;                     // all before it are readable
  std::vector<block::LeasedPage> untold = {};  // of the group of `next`
};

// Thread-safe. Calls SessionOptions::on_event, holding the session's event mutex and no other.
class Watcher {
 public:
  Watcher(Context* context, const Refused* refused) : context_(context), refused_(refused) {}

  void Add(Watch watch) PREFIXD_EXCLUDES(mutex_);
  // Notify it whenever a page became readable or failed.
  WorkSignal& changed() { return changed_; }

  // Tells what became ready. One thread at a time calls it.
  void Step() PREFIXD_EXCLUDES(mutex_);
  void Run();  // until Stop
  void Stop() { changed_.Stop(); }

 private:
  bool Advance(Watch* watch);  // false: nothing left to tell
  void TellReady(const Watch& watch, uint32_t group, std::vector<block::LeasedPage> untold);
  void TellFailed(Watch* watch, const index::PageInfo& page);

  Context* const context_;
  const Refused* const refused_;
  WorkSignal changed_;
  std::vector<Watch> watches_;  // of the thread that calls Step()
  base::Mutex mutex_;
  std::vector<Watch> new_watches_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::cache
