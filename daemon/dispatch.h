// Dispatch chooses the thread on which an RPC runs. gRPC's callback threads read and write every
// connection, so Dispatch always leaves one free: further calls that may wait get threads of their
// own. A client that is alone is served without any hop between threads. Long messages, calls that
// wait for another worker, calls that wait for room or a disk, streams of pages and calls of people
// have separate threads, so that no kind is in the way of another.
//
// Thread-safe.
#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "grpcpp/grpcpp.h"

#include "base/threads.h"
#include "cache/cache.h"
#include "daemon/call.h"
#include "daemon/long_requests.h"
#include "daemon/shares.h"
#include "daemon/stream_limit.h"
#include "daemon/tracing/call_trace.h"
#include "daemon/unary_call.h"
#include "daemon/unix_listener.h"
#include "wire/limits.h"

namespace prefixd::daemon {

class Dispatch {
 public:
  using Context = grpc::CallbackServerContext;

  // A session that is alone may have `threads` calls that wait for another worker, as many that
  // wait for room or a disk, and as many streams of pages; all sessions together twice as many
  // (Shares). Further ones are answered RESOURCE_EXHAUSTED. `cache` counts them and must outlive
  // this, as must `tracer`; null: no call is traced. `token_message_bytes`: largest message with
  // tokens.
  Dispatch(cache::Cache* cache, int threads, uint64_t token_message_bytes,
           const StreamPatience& streams, Tracer* tracer = nullptr);

  // Looks whether a caller may name a session: OK, or the answer to the call.
  using SessionCheck =
      std::function<absl::Status(const grpc::ServerContextBase&, block::SessionId)>;
  // Call it before anybody calls; without it every caller may.
  void set_session_check(SessionCheck check) { session_check_ = std::move(check); }
  absl::Status CheckSession(const grpc::ServerContextBase& context,
                            block::SessionId session) const {
    return session_check_ == nullptr ? absl::OkStatus() : session_check_(context, session);
  }

  // `name`: the verb's counter ("rpc.match"). `has_tokens`: its messages may be as long as
  // token_limit() allows. `of_people`: they are short, and never wait for a worker's.
  struct Verb {
    const char* name;
    bool has_tokens = false;
    bool of_people = false;
  };
  const MessageLimit& token_limit() const { return token_limit_; }
  // Returns the reactor of a call. `handle(call)` ends the call, or passes it to Now, Quick,
  // Waiting or Pending. A long message is parsed and handled on a thread for long requests, any
  // other one on this thread at once. Empties `message`.
  template <typename Request, typename Reply, typename Handle>
  grpc::ServerUnaryReactor* Serve(Context* context, const Verb& verb,
                                  const grpc::ByteBuffer* message, grpc::ByteBuffer* reply,
                                  const Handle& handle) {
    auto* const call = new UnaryCall<Request, Reply>(context, cache_, &later_, reply);
    if (tracer_ != nullptr) {
      const std::string& service = Request::descriptor()->file()->service(0)->full_name();
      call->IsTraced(CallTrace::Begin(tracer_, *context, {service, verb.name}));
    }
    const absl::StatusOr<uint64_t> bytes =
        UnfoldedBytes(*Request::descriptor(), *message, LimitOfMessage(verb));
    if (!bytes.ok()) {
      call->End(Call(cache_, verb.name).End(bytes.status()));
      return call;
    }
    Shares::Share share;
    const bool is_short = IsShort(message->Length(), *bytes);
    if (!is_short) {
      share = long_memory_.TakeAs(CallerOf(context->peer()),
                                  std::max<uint64_t>(message->Length(), *bytes));
      if (share == nullptr) {
        call->End(RefuseMemory());
        return call;
      }
    }
    call->Asks({.verb = verb.name, .bytes = *bytes, .share = std::move(share)});
    // gRPC would keep the message until the call is done.
    const auto taken = std::make_shared<grpc::ByteBuffer>();
    taken->Swap(const_cast<grpc::ByteBuffer*>(message));
    const auto serve = [this, call, handle, of_people = verb.of_people](grpc::ByteBuffer* from) {
      absl::Status read = call->Read(from);
      if (read.ok() && !of_people) read = CheckSession(call->context(), call->session());
      if (read.ok()) return handle(call);
      Run(call, [&] { return read; });
    };
    if (is_short) {
      serve(taken.get());
    } else {
      cache_->Count("requests.long");
      long_.Post(*bytes, [serve, taken] { serve(taken.get()); });
    }
    return call;
  }

  // In the four below `work` returns the absl::Status of `call`, which must not be touched after.
  //
  // For work that never waits: runs it on this thread.
  template <typename Work>
  void Now(HandOutCall* call, const Work& work) {
    Run(call, work);
  }
  // For work that seldom waits: as Now if another callback thread stays free, else as Waiting.
  template <typename Work>
  void Quick(HandOutCall* call, const Work& work) {
    if (call->asked().share != nullptr)
      return Run(call, work);  // a long request: this is not a callback thread
    if (here_.fetch_add(1) >= most_here_) {
      here_.fetch_sub(1);
      return Waiting(call, work);
    }
    Run(call, work);
    here_.fetch_sub(1);
  }
  // For work that seldom waits for another host. `here` runs as in Quick and returns its status, or
  // nullopt where it would wait: then `elsewhere` runs as in Pending, or `instead`, which does not
  // wait, on this thread if the session or its host has its share of calls that do.
  template <typename Here, typename Elsewhere, typename Instead>
  void QuickOrPending(HandOutCall* call, const Here& here, const Elsewhere& elsewhere,
                      const Instead& instead) {
    if (call->asked().share != nullptr || here_.fetch_add(1) >= most_here_) {
      if (call->asked().share == nullptr) here_.fetch_sub(1);
      const auto both = [here, elsewhere] {
        const std::optional<absl::Status> status = here();
        return status.has_value() ? *status : elsewhere();
      };
      return call->asked().share != nullptr ? Run(call, both) : Waiting(call, both);
    }
    Call counted(cache_, call->asked().verb);
    if (const std::optional<absl::Status> status = here()) {
      call->End(counted.End(*status));
    } else if (Shares::Share share =
                   wait_shares_.Take(call->session(), call->peer(), call->asked().bytes)) {
      waits_.Post([this, call, elsewhere, share] { Run(call, elsewhere); });
    } else {
      call->End(counted.End(instead()));
    }
    here_.fetch_sub(1);
  }
  // For work that waits for room or a disk: runs it on a thread of its own.
  template <typename Work>
  void Waiting(HandOutCall* call, const Work& work) {
    OnThread(&calls_, &call_shares_, call, work);
  }
  // For work that waits for another worker: runs it on a thread of its own.
  template <typename Work>
  void Pending(HandOutCall* call, const Work& work) {
    OnThread(&waits_, &wait_shares_, call, work);
  }
  // For a call of people: runs it on a thread that no worker's call can take.
  template <typename Work>
  void Admin(HandOutCall* call, const Work& work) {
    if (!admin_.TryRun([this, call, work] { Run(call, work); })) call->End(Refuse(admin_.most()));
  }
  // The same for a call that seldom waits: runs it here if another callback thread stays free.
  template <typename Work>
  void QuickAdmin(HandOutCall* call, const Work& work) {
    if (here_.fetch_add(1) >= most_here_) {
      here_.fetch_sub(1);
      return Admin(call, work);
    }
    Run(call, work);
    here_.fetch_sub(1);
  }

  // Threads of streams of pages; each stream takes one while it moves.
  base::Threads* streams() { return &streams_; }
  Shares* stream_shares() { return &stream_shares_; }
  const StreamPatience& patience() const { return patience_; }
  // Threads for short work that must not run on gRPC's threads nor wait for those of other calls.
  base::Threads* later() { return &later_; }
  Tracer* tracer() const { return tracer_; }  // null: no call is traced
  // Returns the answer to a call or stream that found none of `most` threads free. Counts it.
  grpc::Status Refuse(size_t most);
  // Returns the answer to a call or stream whose session or host has its share. Counts it.
  grpc::Status RefuseShare(size_t most);
  // Returns the answer to a long request for which no memory is left. Counts it.
  grpc::Status RefuseMemory();

  // Returns a reference that a drain waits for. idle() is true once nobody holds one.
  std::shared_ptr<void> Running();
  bool idle() const { return running_.use_count() <= 1; }

 private:
  MessageLimit LimitOfMessage(const Verb& verb) const {
    if (verb.of_people) {
      return {.bytes = LongRequests::kShortMessageBytes,
              .unfolded_bytes = LongRequests::kShortUnfoldedBytes};
    }
    return {.bytes = verb.has_tokens ? token_limit_.bytes : wire::kMaxMessageBytes,
            .unfolded_bytes = token_limit_.unfolded_bytes};
  }
  static bool IsShort(uint64_t message_bytes, uint64_t unfolded_bytes) {
    return message_bytes <= LongRequests::kShortMessageBytes &&
           unfolded_bytes <= LongRequests::kShortUnfoldedBytes;
  }

  template <typename Work>
  void OnThread(base::Threads* threads, Shares* shares, HandOutCall* call, const Work& work) {
    const uint64_t bytes =
        call->asked().share == nullptr ? call->asked().bytes : 0;  // a long request has its bytes
    const Shares::Share share = shares->Take(call->session(), call->peer(), bytes);
    if (share == nullptr) return call->End(RefuseShare(shares->most()));
    threads->Post([this, call, work, share] { Run(call, work); });
  }
  template <typename Work>
  void Run(HandOutCall* call, const Work& work) {
    Call counted(cache_, call->asked().verb);
    call->End(counted.End(work()));
  }

  cache::Cache* const cache_;
  Tracer* const tracer_;
  const int most_here_;
  const StreamPatience patience_;
  const MessageLimit token_limit_;
  SessionCheck session_check_;
  std::atomic<int> here_{0};
  const std::shared_ptr<int> running_ = std::make_shared<int>();
  // Declared before the threads that hold shares, so destroyed after them.
  Shares wait_shares_, call_shares_, stream_shares_, long_memory_;
  base::Threads later_;
  LongRequests long_;
  base::Threads waits_;
  base::Threads calls_;
  base::Threads streams_;
  base::Threads admin_;
};

}  // namespace prefixd::daemon
