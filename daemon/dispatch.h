// Where an RPC runs. gRPC's callback threads read and write every connection, so one of them is
// always left free; a call that may wait beyond that gets a thread of its own. One client at a time
// is served without any hop between threads.
//
// Thread-safe.
#pragma once
#include <atomic>
#include <memory>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/threads.h"
#include "wire/stream_cpu.h"

namespace prefixd::daemon {

class Dispatch {
 public:
  // At most `threads` calls wait at the same time, and as many streams move pages; more are
  // answered RESOURCE_EXHAUSTED. `cache` counts them; must outlive this.
  Dispatch(cache::Cache* cache, int threads);

  // `work` returns the grpc::Status of the call. request and reply live until then.
  //
  // Never waits: on this thread.
  template <typename Work>
  grpc::ServerUnaryReactor* Now(grpc::CallbackServerContext* context, const Work& work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(work());
    return reactor;
  }
  // Seldom waits: on this thread while another callback thread stays free.
  template <typename Work>
  grpc::ServerUnaryReactor* Quick(grpc::CallbackServerContext* context, const Work& work) {
    if (here_.fetch_add(1) >= most_here_) {
      here_.fetch_sub(1);
      return Waiting(context, work);
    }
    grpc::ServerUnaryReactor* reactor = Now(context, work);
    here_.fetch_sub(1);
    return reactor;
  }
  // Waits: on a thread of its own.
  template <typename Work>
  grpc::ServerUnaryReactor* Waiting(grpc::CallbackServerContext* context, const Work& work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!calls_.TryRun([reactor, work] { reactor->Finish(work()); })) reactor->Finish(Refuse());
    return reactor;
  }

  // Streams of pages, which take a thread each.
  Threads* streams() { return &streams_; }
  // gRPC's own threads, as what carries those streams.
  wire::Carriers* carriers() { return &carriers_; }
  // Of a call or stream that found no thread. Counts it.
  grpc::Status Refuse();

  // Held by what a drain waits for.
  std::shared_ptr<void> Running();
  bool idle() const { return running_.use_count() <= 1; }

 private:
  cache::Cache* const cache_;
  const int most_here_;
  std::atomic<int> here_{0};
  const std::shared_ptr<int> running_ = std::make_shared<int>();
  wire::Carriers carriers_;
  Threads calls_;
  Threads streams_;
};

}  // namespace prefixd::daemon
