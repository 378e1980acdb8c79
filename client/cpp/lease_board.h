// Which leases wait for events of the session's stream. An event may overtake the answer that names
// its lease: those that come while a call is under way are kept for it.
//
// Thread-safe.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "leased_pages.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::client {

class LeaseBoard {
 public:
  // While one lives, events are kept. Around the call and what is done with its answer.
  class Asking {
   public:
    explicit Asking(LeaseBoard* board) : board_(board) { board_->BeginAsking(); }
    ~Asking() { board_->EndAsking(); }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

   private:
    LeaseBoard* const board_;
  };

  // From now on `pages` hears of its lease, also what was said since the call began. One lease, one
  // listener: a lease that went on is put up again. When the session has ended, its load ends.
  void Put(const std::shared_ptr<LeasedPages>& pages) PREFIXD_EXCLUDES(mutex_);

  void Begin(const Session& session) PREFIXD_EXCLUDES(mutex_);
  void Tell(const Session& session, const v1::SessionEvent& event) PREFIXD_EXCLUDES(mutex_);
  // No further event: what is ready by now is all there is.
  void End(const Session& session) PREFIXD_EXCLUDES(mutex_);

 private:
  void BeginAsking() PREFIXD_EXCLUDES(mutex_);
  void EndAsking() PREFIXD_EXCLUDES(mutex_);

  base::Mutex mutex_;  // guards what follows
  Session session_ PREFIXD_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<LeasedPages>> listeners_ PREFIXD_GUARDED_BY(mutex_);
  size_t swept_at_ PREFIXD_GUARDED_BY(mutex_) = 64;  // listeners at which the gone ones are dropped
  size_t asking_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::vector<v1::SessionEvent> kept_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
