#include "daemon/fetch_stream.h"

#include <atomic>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "daemon/call.h"
#include "daemon/inbound.h"
#include "daemon/message.h"
#include "daemon/stream_limit.h"
#include "daemon/tracing/call_trace.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"  // how messages become bytes
#include "wire/page_message.h"
#include "wire/request.h"

namespace prefixd::daemon {
namespace {

using Reactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

wire::PieceHeader HeaderOf(const cache::PagePiece& piece) {
  return {.group = piece.group,
          .first_token = piece.first_token,
          .tokens = piece.tokens,
          .rung = piece.rung,
          .page_bytes = piece.page_bytes,
          .offset = piece.offset,
          .xxh3 = piece.xxh3,
          .sum_seed = piece.sum_seed,
          .data_bytes = piece.data.size()};
}

class FetchStream final : public Reactor, public cache::FetchSink {
 public:
  FetchStream(cache::Cache* cache, Dispatch* dispatch, std::shared_ptr<void> charge,
              grpc::CallbackServerContext* context)
      : cache_(cache),
        dispatch_(dispatch),
        charge_(std::move(charge)),
        call_(cache, "rpc.fetch"),
        context_(context),
        limit_(context),
        running_(dispatch->Running()) {
    if (Tracer* const tracer = dispatch->tracer(); tracer != nullptr)
      trace_ =
          CallTrace::Begin(tracer, *context, {v1::PrefixCache::service_full_name(), "rpc.fetch"});
  }

  void Start(const grpc::ByteBuffer& request) {
    v1::FetchRequest fetch;
    absl::Status status = ReadSmall(request, &fetch);
    absl::StatusOr<cache::FetchRequest> wanted = wire::FromProto(fetch);
    if (status.ok()) status = wanted.status();
    if (status.ok()) status = dispatch_->CheckSession(*context_, {fetch.session()});
    if (!status.ok()) return End(Traced(call_.End(status)));
    share_ = dispatch_->stream_shares()->Take({fetch.session()}, context_->peer());
    if (share_ == nullptr) return End(Traced(dispatch_->RefuseShare(dispatch_->streams()->most())));
    dispatch_->streams()->Post([this, session = block::SessionId{fetch.session()},
                                wanted = *std::move(wanted)] { Run(session, wanted); });
  }

  bool Page(const cache::PagePiece& piece) override {
    return Send(wire::MakePageMessage(HeaderOf(piece), piece.data.data(),
                                      piece.in_lease ? hold_ : nullptr));
  }
  bool Ready(const cache::GroupReady& ready) override {
    v1::FetchChunk chunk;
    chunk.mutable_ready()->set_group(ready.group);
    chunk.mutable_ready()->set_usable_tokens(ready.usable_tokens);
    chunk.mutable_ready()->set_reason(static_cast<v1::ShortenReason>(ready.reason));
    grpc::ByteBuffer message;
    return Write(chunk, &message).ok() && Send(std::move(message));
  }

  void OnWriteDone(bool ok) override {
    std::optional<grpc::Status> end;
    {
      base::MutexLock lock(mutex_);
      unwritten_.reset();
      broken_ = broken_ || !ok;
      end = std::exchange(end_, std::nullopt);
      moved_.NotifyAll();
    }
    if (end.has_value()) End(*end);
  }
  void OnCancel() override {
    gave_up_ = true;
    base::MutexLock lock(mutex_);
    broken_ = true;
    moved_.NotifyAll();
  }
  void OnDone() override { delete this; }

 private:
  void Run(block::SessionId session, const cache::FetchRequest& request) {
    hold_ = cache_->Hold(session, request.lease);
    const cache::Patience patience(DeadlineOf(*context_, kMaxStream), &gave_up_);
    absl::Status status = cache_->Fetch(session, request, patience, this);
    hold_.reset();
    share_.reset();
    std::optional<grpc::Status> end;
    {
      base::MutexLock lock(mutex_);
      if (status.ok() && broken_) status = absl::CancelledError("fetch: the worker went away");
      if (stalled_) status = Stalled();
      end = Traced(call_.End(status));
      if (unwritten_.has_value()) end_ = std::exchange(end, std::nullopt);  // OnWriteDone finishes
    }
    if (end.has_value()) End(*end);  // do not touch `this` afterwards
  }

  // Nothing of `this` may be touched afterwards.
  void End(const grpc::Status& status) {
    charge_.reset();  // the worker may begin its next stream as soon as it hears of the end
    Finish(status);
  }

  // Sends a message and waits until gRPC has taken it. Returns false if the worker is gone or does
  // not read. Several messages at a time would save wakes, a tenth of the time; but calls beside
  // the stream would be served after all of them.
  bool Send(grpc::ByteBuffer message) {
    base::MutexLock lock(mutex_);
    if (broken_) return false;
    unwritten_ = std::move(message);
    StartWrite(&*unwritten_);
    const auto begun = std::chrono::steady_clock::now();
    const base::Deadline linger = begun + dispatch_->patience().linger,
                         silence = begun + dispatch_->patience().silence;
    while (unwritten_.has_value() && !broken_ && std::chrono::steady_clock::now() < silence) {
      const bool waits_long = std::chrono::steady_clock::now() >= linger;
      if (waits_long) running_.reset();
      moved_.WaitUntil(mutex_, waits_long ? silence : std::min(linger, silence));
    }
    if (unwritten_.has_value() && !broken_) {
      stalled_ = broken_ = true;
      cache_->Count("streams.stalled");
      EndStream(context_, ToGrpc(Stalled()));  // ends the write too
    }
    if (running_ == nullptr) running_ = dispatch_->Running();
    return !broken_;
  }
  grpc::Status Traced(grpc::Status status) {
    if (trace_ != nullptr) trace_->End(status);
    return status;
  }
  absl::Status Stalled() const {
    return absl::DeadlineExceededError(
        absl::StrCat("fetch: nobody read for ",
                     std::chrono::duration<double>(dispatch_->patience().silence).count(), " s"));
  }

  cache::Cache* const cache_;
  Dispatch* const dispatch_;
  std::shared_ptr<void> charge_;
  Call call_;
  grpc::CallbackServerContext* const context_;
  std::unique_ptr<CallTrace> trace_;  // null: not traced
  const InboundCall counted_{context_->peer()};
  const StreamLimit limit_;
  std::shared_ptr<void> running_;  // null while Run waits long for its reader
  std::atomic<bool> gave_up_{false};
  Shares::Share share_;
  std::shared_ptr<const void> hold_;  // only Run's thread touches it
  base::Mutex mutex_;
  base::CondVar moved_;
  std::optional<grpc::ByteBuffer> unwritten_ PREFIXD_GUARDED_BY(mutex_);
  bool broken_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stalled_ PREFIXD_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> end_ PREFIXD_GUARDED_BY(mutex_);  // for OnWriteDone to finish with
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(cache::Cache* cache, Dispatch* dispatch,
                                                       std::shared_ptr<void> charge,
                                                       grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer& request) {
  auto* stream = new FetchStream(cache, dispatch, std::move(charge), context);
  stream->Start(request);
  return stream;
}

}  // namespace prefixd::daemon
