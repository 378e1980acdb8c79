// Direct calls (wire/direct.h): the short calls of workers on this host, without gRPC.
//
// Each connection has a thread, which serves its calls one after the other. Calls do what they do
// by gRPC, and are counted as there.
#pragma once
#include <atomic>
#include <map>
#include <memory>

#include "base/descriptor.h"
#include "base/mutex.h"
#include "base/threads.h"
#include "block/arena_file.h"
#include "cache/cache.h"
#include "daemon/dispatch.h"
#include "daemon/prefix_cache_service.h"
#include "daemon/sessions.h"

namespace prefixd::daemon {

// Thread-safe.
class DirectCalls {
 public:
  // All must outlive this.
  DirectCalls(cache::Cache* cache, Sessions* sessions, Dispatch* dispatch,
              PrefixCacheService* service);
  // Hangs up on everybody. Waits for calls that are being served; what they wait for ends at once.
  ~DirectCalls();
  DirectCalls(const DirectCalls&) = delete;
  DirectCalls& operator=(const DirectCalls&) = delete;

  // Serves the connection until the worker hangs up or its session ends. Hangs up at once if no
  // thread can be had: the worker then calls by gRPC.
  void Serve(base::Descriptor connection, block::SessionId session) PREFIXD_EXCLUDES(mutex_);
  // Hangs up on a session that ended.
  void End(block::SessionId session) PREFIXD_EXCLUDES(mutex_);

 private:
  class Connection;
  void Forget(block::SessionId session) PREFIXD_EXCLUDES(mutex_);

  cache::Cache* const cache_;
  Sessions* const sessions_;
  Dispatch* const dispatch_;
  PrefixCacheService* const service_;
  std::atomic<bool> stopping_{false};
  base::Mutex mutex_;
  std::map<block::SessionId, std::shared_ptr<Connection>> connections_ PREFIXD_GUARDED_BY(mutex_);
  // One for each worker that maps the arena; those of sessions that ended may still be there.
  base::Threads threads_{"prefixd calls", 2 * block::kArenaSlots, 0};
};

}  // namespace prefixd::daemon
