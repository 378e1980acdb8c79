// Attach streams: a stream's life is its session's.
//
// Thread-safe. Streams run on gRPC's callback threads and hold no thread of their own; a stream
// that ends, for whatever reason, ends its session within milliseconds.
#pragma once
#include <cstdint>
#include <set>
#include <string>

#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "cache/cache.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"

namespace prefixd::daemon {

class Sessions {
 public:
  using Reactor = grpc::ServerWriteReactor<v1::SessionEvent>;

  // `cache` must outlive this; this must outlive the server that runs its streams.
  Sessions(cache::Cache* cache, std::string version)
      : cache_(cache), version_(std::move(version)) {}

  // Owned by itself until its stream is done.
  Reactor* Attach(const v1::AttachRequest& request) PREFIXD_EXCLUDES(mutex_);
  // Sends Draining to every session; streams that come later are refused.
  void Drain(uint32_t deadline_ms) PREFIXD_EXCLUDES(mutex_);
  // Finishes every stream.
  void EndAll() PREFIXD_EXCLUDES(mutex_);
  bool draining() const PREFIXD_EXCLUDES(mutex_);

 private:
  class Stream;
  void Forget(Stream* stream) PREFIXD_EXCLUDES(mutex_);

  cache::Cache* const cache_;
  const std::string version_;
  mutable base::Mutex mutex_;  // taken before a stream's own
  std::set<Stream*> streams_ PREFIXD_GUARDED_BY(mutex_);
  bool draining_ PREFIXD_GUARDED_BY(mutex_) = false;
};

}  // namespace prefixd::daemon
