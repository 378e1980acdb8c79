// Delivers the events of the session's stream to the leases that wait for them. An event may
// overtake the reply that names its lease, so events that come while a call is under way are kept
// for it.
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

class LeaseEvents {
 public:
  // Events are kept while an Asking lives. Put it around the call and the use of its reply.
  class Asking {
   public:
    explicit Asking(LeaseEvents* board) : board_(board) { board_->BeginAsking(); }
    ~Asking() { board_->EndAsking(); }
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

   private:
    LeaseEvents* const board_;
  };

  // Delivers to `pages` the events of its lease from now on, and those since the call began. A
  // lease has one listener; put a lease again after it was extended. If the session has ended,
  // cancels the load.
  void Put(const std::shared_ptr<LeasedPages>& pages) PREFIXD_EXCLUDES(mutex_);

  void Begin(const Session& session) PREFIXD_EXCLUDES(mutex_);
  void Tell(const Session& session, const v1::SessionEvent& event) PREFIXD_EXCLUDES(mutex_);
  // Cancels the loads of the session: no further event will come.
  void End(const Session& session) PREFIXD_EXCLUDES(mutex_);

 private:
  void BeginAsking() PREFIXD_EXCLUDES(mutex_);
  void EndAsking() PREFIXD_EXCLUDES(mutex_);

  base::Mutex mutex_;  // guards what follows
  Session session_ PREFIXD_GUARDED_BY(mutex_);
  std::map<uint64_t, std::weak_ptr<LeasedPages>> listeners_ PREFIXD_GUARDED_BY(mutex_);
  size_t swept_at_ PREFIXD_GUARDED_BY(mutex_) = 64;  // listeners at which expired ones are dropped
  size_t asking_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::vector<v1::SessionEvent> kept_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::client
