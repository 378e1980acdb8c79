// WatchEvents: a stream for each listener, all served by one thread. Whoever stores or reads never
// waits for them: the thread reads what the index has noted.
//
// Thread-safe.
#pragma once
#include <memory>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "cache/cache.h"
#include "prefixd/v1/admin.grpc.pb.h"

namespace prefixd::daemon {

class EventStreams {
 public:
  using Reactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;  // of WatchEventsReply
  static constexpr size_t kMostStreams = 32;

  // `cache` must outlive this. This must outlive the server that runs the streams.
  explicit EventStreams(cache::Cache* cache);
  ~EventStreams();  // as Stop

  // The reactor owns itself, and keeps `held`, until its stream is done. A listener has at most one
  // reply unread; how far it has read is its place in the index's log, and one that falls behind
  // that is sent a new snapshot.
  Reactor* Watch(const grpc::ByteBuffer& message, std::shared_ptr<void> held)
      PREFIXD_EXCLUDES(mutex_);
  // Ends every stream, and refuses new ones.
  void Stop() PREFIXD_EXCLUDES(mutex_);

 private:
  class Stream;
  void Run() PREFIXD_EXCLUDES(mutex_);
  // Waits until some stream may have something to do. Returns those that have.
  std::vector<Stream*> WaitForWork() PREFIXD_EXCLUDES(mutex_);

  cache::Cache* const cache_;
  base::Mutex mutex_;
  base::CondVar changed_;
  std::vector<Stream*> streams_ PREFIXD_GUARDED_BY(mutex_);  // that are not finished
  bool stopping_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the only one that finishes streams
};

}  // namespace prefixd::daemon
