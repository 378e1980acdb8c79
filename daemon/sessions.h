// Attach streams: a stream's life is its session's.
//
// Thread-safe. Streams run on gRPC's callback threads and hold no thread of their own; a stream
// that ends, for whatever reason, ends its session within milliseconds.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "grpcpp/grpcpp.h"

#include "base/mutex.h"
#include "base/threads.h"
#include "cache/cache.h"
#include "daemon/access/gate.h"
#include "daemon/shares.h"
#include "daemon/tracing/load_traces.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"

namespace prefixd::daemon {

class Sessions {
 public:
  using Reactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;  // of SessionEvents

  // `fd_socket`: the name of the side socket beside the gRPC one; empty = none, and so no arena.
  // There are at most `most` sessions at a time, and one process, or one host behind TCP, never has
  // more than it leaves to others. `cache` must outlive this; this must outlive the server that
  // runs its streams. `loads` hears of every event, and must outlive the cache; null: none does.
  Sessions(cache::Cache* cache, std::string version, std::string fd_socket, size_t most,
           LoadTraces* loads = nullptr)
      : cache_(cache),
        loads_(loads),
        version_(std::move(version)),
        fd_socket_(std::move(fd_socket)),
        seats_(most) {}

  // Begins a session. `peer` is gRPC's name of the worker: only workers on a unix socket may have
  // the arena, and only the process that attaches gets its files. The reactor owns itself until its
  // stream is done, and keeps `seat` as long. `has_tenants`: workers that do not trust each other
  // attach here, so none may have the arena.
  Reactor* Attach(const grpc::ByteBuffer& message, const std::string& peer,
                  std::shared_ptr<Gate::Seat> seat, bool has_tenants) PREFIXD_EXCLUDES(mutex_);
  // Ends an attached session as if its worker had gone; the worker hears ABORTED. When this returns
  // the cache has ended the session. Returns false if it has no stream, or its stream is ending.
  bool End(block::SessionName session) PREFIXD_EXCLUDES(mutex_);
  // The same by the number by which the session acts, later, on another thread; the worker hears
  // `status`. Does nothing if it has no stream.
  void EndBecause(block::SessionId session, const grpc::Status& status) PREFIXD_EXCLUDES(mutex_);
  // Sends Draining to every session; streams that come later are refused.
  void Drain(uint32_t deadline_ms) PREFIXD_EXCLUDES(mutex_);
  // Finishes every stream.
  void EndAll() PREFIXD_EXCLUDES(mutex_);
  bool draining() const PREFIXD_EXCLUDES(mutex_);
  // Returns whether the session has a stream.
  bool Has(block::SessionId session) const PREFIXD_EXCLUDES(mutex_);
  // Sets what hears of a session whose stream is over. Call it before anybody attaches.
  void set_on_end(std::function<void(block::SessionId)> on_end) { on_end_ = std::move(on_end); }
  // Says that connections to the side socket carry direct calls. Call it before anybody attaches.
  void set_direct_calls() { direct_calls_ = true; }

 private:
  class Outbox;
  class Stream;
  // Returns why a worker that wants the arena cannot have it; empty if it can.
  std::string WhyNoArena(const v1::AttachRequest& request, bool on_this_host,
                         bool has_tenants) const;
  // Takes a place for a session. RESOURCE_EXHAUSTED if all are taken or `owner` has its share.
  absl::StatusOr<Shares::Share> TakeSeat(const std::string& owner);
  void Begin(Stream* stream) PREFIXD_EXCLUDES(mutex_);
  void EndLater(block::SessionId session, const std::string& worker);
  void Forget(block::SessionId session) PREFIXD_EXCLUDES(mutex_);

  cache::Cache* const cache_;
  LoadTraces* const loads_;
  const std::string version_;
  const std::string fd_socket_;
  std::function<void(block::SessionId)> on_end_;
  bool direct_calls_ = false;
  Shares seats_;
  mutable base::Mutex mutex_;  // taken before a stream's own
  std::map<block::SessionId, Stream*> streams_ PREFIXD_GUARDED_BY(mutex_);
  bool draining_ PREFIXD_GUARDED_BY(mutex_) = false;
  // Ending a session may wait for one of its Puts, resuming one may wait for the index: neither
  // runs on a callback thread.
  base::Threads endings_{"prefixd ends", 4};
  base::Threads beginnings_{"prefixd begins", 4};
};

}  // namespace prefixd::daemon
