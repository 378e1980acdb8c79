// Where an RPC runs. gRPC's callback threads read and write every connection, so one of them is
// always left free; a call that may wait beyond that gets a thread of its own. One client at a time
// is served without any hop between threads. Calls that wait for another worker, calls that wait
// for room or a disk, streams of pages and calls of Admin have threads apart, so that none of them
// is in the way of another kind.
//
// Thread-safe.
#pragma once
#include <atomic>
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"

#include "cache/cache.h"
#include "daemon/hand_out.h"
#include "daemon/shares.h"
#include "daemon/stream_limit.h"
#include "daemon/threads.h"
#include "wire/stream_cpu.h"

namespace prefixd::daemon {

class Dispatch {
 public:
  using Context = grpc::CallbackServerContext;

  // One session may have `threads` calls that wait for another worker, as many that wait for room
  // or a disk, and as many streams for pages, while no other session has any; all together twice
  // as many (Shares). More are answered RESOURCE_EXHAUSTED. `cache` counts them; must outlive this.
  Dispatch(cache::Cache* cache, int threads, const StreamPatience& streams);

  // The reactor of a call that hands something out, or waits.
  HandOutCall* NewCall(Context* context, block::SessionId session) {
    return new HandOutCall(context, cache_, &later_, session);
  }

  // `work` returns the grpc::Status of the call. request and reply live until then.
  //
  // Never waits: on this thread.
  template <typename Work>
  grpc::ServerUnaryReactor* Now(Context* context, const Work& work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(work());
    return reactor;
  }
  // Seldom waits: on this thread while another callback thread stays free. `call`: a HandOutCall,
  // or the context's default reactor.
  template <typename Call, typename Work>
  grpc::ServerUnaryReactor* Quick(Context* context, Call* call, block::SessionId session,
                                  const Work& work) {
    if (here_.fetch_add(1) >= most_here_) {
      here_.fetch_sub(1);
      return Waiting(context, call, session, work);
    }
    End(call, work());
    here_.fetch_sub(1);
    return call;
  }
  template <typename Work>
  grpc::ServerUnaryReactor* Quick(Context* context, block::SessionId session, const Work& work) {
    return Quick(context, context->DefaultReactor(), session, work);
  }
  // Waits for room, or for a disk: on a thread of its own.
  template <typename Call, typename Work>
  grpc::ServerUnaryReactor* Waiting(Context* context, Call* call, block::SessionId session,
                                    const Work& work) {
    return OnThread(&calls_, &call_shares_, context, call, session, work);
  }
  // Waits for another worker: on a thread of its own.
  template <typename Work>
  grpc::ServerUnaryReactor* Pending(Context* context, HandOutCall* call, block::SessionId session,
                                    const Work& work) {
    return OnThread(&waits_, &wait_shares_, context, call, session, work);
  }
  // A call of Admin: on a thread that no worker's call can take.
  template <typename Call, typename Work>
  grpc::ServerUnaryReactor* Admin(Call* call, const Work& work) {
    if (!admin_.TryRun([call, work] { End(call, work()); })) End(call, Refuse(admin_.most()));
    return call;
  }
  // The same, of one that seldom waits.
  template <typename Work>
  grpc::ServerUnaryReactor* QuickAdmin(Context* context, const Work& work) {
    if (here_.fetch_add(1) >= most_here_) {
      here_.fetch_sub(1);
      return Admin(context->DefaultReactor(), work);
    }
    grpc::ServerUnaryReactor* reactor = Now(context, work);
    here_.fetch_sub(1);
    return reactor;
  }

  // Streams of pages, which take a thread each while they move.
  Threads* streams() { return &streams_; }
  Shares* stream_shares() { return &stream_shares_; }
  const StreamPatience& patience() const { return patience_; }
  // For what ends soon, and must not run on gRPC's threads nor wait for those of other calls.
  Threads* later() { return &later_; }
  // gRPC's own threads, as what carries those streams.
  wire::Carriers* carriers() { return &carriers_; }
  // Answers a call or stream that found none of `most` threads free, and counts it.
  grpc::Status Refuse(size_t most);
  // Answers one whose session has its share already.
  grpc::Status RefuseShare(size_t most);

  // Held by what a drain waits for.
  std::shared_ptr<void> Running();
  bool idle() const { return running_.use_count() <= 1; }

 private:
  static void End(grpc::ServerUnaryReactor* call, const grpc::Status& status) {
    call->Finish(status);
  }
  static void End(HandOutCall* call, const grpc::Status& status) { call->End(status); }

  template <typename Call, typename Work>
  grpc::ServerUnaryReactor* OnThread(Threads* threads, Shares* shares, Context* context, Call* call,
                                     block::SessionId session, const Work& work) {
    const Shares::Share share = shares->Take(session, context->peer());
    if (share == nullptr) {
      End(call, RefuseShare(shares->most()));
    } else {
      threads->Post([call, work, share] { End(call, work()); });
    }
    return call;
  }

  cache::Cache* const cache_;
  const int most_here_;
  const StreamPatience patience_;
  std::atomic<int> here_{0};
  const std::shared_ptr<int> running_ = std::make_shared<int>();
  wire::Carriers carriers_;
  // Before the threads that hold them.
  Shares wait_shares_, call_shares_, stream_shares_;
  Threads later_;
  Threads waits_;
  Threads calls_;
  Threads streams_;
  Threads admin_;
};

}  // namespace prefixd::daemon
