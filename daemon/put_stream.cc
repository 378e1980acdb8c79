#include "daemon/put_stream.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status.h"
#include "daemon/call.h"
#include "daemon/inbound.h"
#include "daemon/message.h"
#include "daemon/stream_limit.h"
#include "daemon/tracing/call_trace.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"  // how messages become bytes
#include "wire/page_message.h"

namespace prefixd::daemon {
namespace {

using Reactor = grpc::ServerReadReactor<grpc::ByteBuffer>;

constexpr size_t kMessagesAhead = 2;

// Returns the piece without its data.
absl::StatusOr<cache::PagePiece> ReadPiece(const wire::PieceHeader& header) {
  PREFIXD_RETURN_IF_ERROR(wire::CheckPiece(header));
  return cache::PagePiece{.group = header.group,
                          .first_token = header.first_token,
                          .tokens = header.tokens,
                          .rung = header.rung,
                          .page_bytes = header.page_bytes,
                          .offset = header.offset,
                          .xxh3 = header.xxh3,
                          .sum_seed = header.sum_seed,
                          .data = {}};
}

class PutStream final : public Reactor {
 public:
  PutStream(cache::Cache* cache, Dispatch* dispatch, std::shared_ptr<void> charge,
            grpc::CallbackServerContext* context, grpc::ByteBuffer* response, CommitCall commit)
      : cache_(cache),
        dispatch_(dispatch),
        charge_(std::move(charge)),
        call_(cache, "rpc.put"),
        context_(context),
        limit_(context),
        until_(DeadlineOf(*context, kMaxStream)),
        response_(response),
        commit_(std::move(commit)),
        link_(std::make_shared<Link>()) {
    if (Tracer* const tracer = dispatch->tracer(); tracer != nullptr)
      trace_ =
          CallTrace::Begin(tracer, *context, {v1::PrefixCache::service_full_name(), "rpc.put"});
  }
  ~PutStream() override {
    base::MutexLock lock(link_->mutex);
    link_->stream = nullptr;
  }

  void Start() {
    {
      base::MutexLock lock(link_->mutex);
      link_->stream = this;
    }
    base::MutexLock lock(mutex_);
    silent_since_ = std::chrono::steady_clock::now();
    AwaitSilence(dispatch_->patience().linger);
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    if (ok && !hand_out_.has_value()) return OnHeader();
    base::MutexLock lock(mutex_);
    if (ok) {
      queue_.emplace_back();
      queue_.back().Swap(&read_);
    }
    over_ = over_ || !ok;
    reading_ = !over_ && queue_.size() < kMessagesAhead;
    if (reading_) StartRead(&read_);
    Wake();
  }
  void OnCancel() override {
    base::MutexLock lock(mutex_);
    gave_up_ = true;
    over_ = true;
    if (!in_header_) Wake();
  }
  void OnDone() override {
    if (context_->IsCancelled() && hand_out_.has_value() && !hand_out_->empty()) {
      dispatch_->later()->Post(
          [taken = std::make_shared<HandOut>(*std::move(hand_out_))] { taken->TakeBack(); });
    }
    delete this;
  }

 private:
  // OnCancel and OnDone take no time, so gRPC need not run them on a thread of its own.
  bool InternalInlineable() override { return true; }

  enum class Came { kMessage, kNothing, kEnd };
  // Stands between the stream and an alarm, which may ring when the stream is gone.
  struct Link {
    base::Mutex mutex;  // taken before the stream's own
    PutStream* stream PREFIXD_GUARDED_BY(mutex) = nullptr;
  };

  // Parks a silent stream: it has no thread, and no drain waits for it.
  void Park() PREFIXD_REQUIRES(mutex_) {
    parked_ = true;
    share_.reset();
    running_.reset();
    silent_since_ = std::chrono::steady_clock::now();
    AwaitSilence(dispatch_->patience().silence);
  }
  void AwaitSilence(std::chrono::milliseconds in) PREFIXD_REQUIRES(mutex_) {
    alarm_.Arm(in, [link = link_, silence = ++silences_] {
      base::MutexLock lock(link->mutex);
      if (link->stream != nullptr) link->stream->Stall(silence);
    });
  }
  void Stall(uint64_t silence) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (!parked_ || silence != silences_) return;
    const StreamPatience& patience = dispatch_->patience();
    const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - silent_since_);
    if (silent < patience.linger) return AwaitSilence(patience.linger - silent);
    running_.reset();
    if (silent < patience.silence) return AwaitSilence(patience.silence - silent);
    stalled_ = over_ = true;
    if (!in_header_) Wake();
  }
  // Takes the header on this thread: it is short, and a stream has no share of the threads before
  // its session is known. The stream stays parked until its first page.
  void OnHeader() PREFIXD_EXCLUDES(mutex_) {
    {
      base::MutexLock lock(mutex_);
      if (over_) return;  // whoever set over_ finishes the stream
      in_header_ = true;
      silent_since_ = std::chrono::steady_clock::now();
      running_ = dispatch_->Running();
    }
    const absl::Status status = TakeHeader(read_);
    {
      base::MutexLock lock(mutex_);
      read_.Clear();
      in_header_ = false;
      if (over_) return Wake();
      if (status.ok()) {
        AwaitSilence(dispatch_->patience().linger);  // the first wait may have lingered already
        return StartRead(&read_);
      }
      parked_ = false;
      over_ = true;
      alarm_.Disarm();
    }
    End(status);
  }
  // Wakes the stream: something came. To go on it needs its share of the threads; to end, none.
  void Wake() PREFIXD_REQUIRES(mutex_) {
    if (!parked_) return arrived_.NotifyAll();
    parked_ = false;
    alarm_.Disarm();
    running_ = dispatch_->Running();
    if (!stalled_ && !gave_up_ && hand_out_.has_value()) {
      share_ = dispatch_->stream_shares()->Take(session_, context_->peer());
      no_share_ = share_ == nullptr;
    }
    if (no_share_) {
      over_ = true;
      queue_.clear();
    }
    (share_ != nullptr ? dispatch_->streams() : dispatch_->later())->Post([this] { Run(); });
  }

  // Takes messages, on a thread, while they come. Nothing of `this` may be touched afterwards.
  void Run() {
    grpc::ByteBuffer buffer;
    absl::Status status;
    while (status.ok()) {
      const Came came = Next(&buffer);
      if (came == Came::kNothing) return;
      if (came == Came::kEnd) break;
      status = TakePage(buffer);
    }
    End(status);
  }

  void End(absl::Status status) {
    v1::CommitReply reply;
    if (status.ok()) status = Ended();
    if (status.ok() && header_.tokens() > 0) {
      status = commit_(header_, ForOneWait(), {&*hand_out_, context_, trace_.get()}, &reply);
    }
    // Once a worker has gone its session ends, and its call fails in many ways: tell the cause.
    if (context_->IsCancelled()) status = absl::CancelledError("put: the worker went away");
    reply.set_epoch(cache_->epoch());
    if (!Write(reply, response_).ok()) {
      status = absl::InternalError("put: the reply cannot be written");
    }
    if (!status.ok() && hand_out_.has_value()) {
      hand_out_->TakeBack();
      cache_->Abandon(session_, reservation_)
          .IgnoreError();  // perhaps unknown, which `status` says then
    }
    const grpc::Status end = call_.End(status);
    if (trace_ != nullptr) trace_->End(end);
    charge_.reset();  // the worker may begin its next stream as soon as it hears of the end
    Finish(end);
  }

  // Returns OK if the stream ended as it should, else why it did not.
  absl::Status Ended() {
    base::MutexLock lock(mutex_);
    if (gave_up_) return absl::CancelledError("put: the worker went away");
    if (no_share_) {
      return absl::ResourceExhaustedError(
          dispatch_->RefuseShare(dispatch_->streams()->most()).error_message());
    }
    if (stalled_) {
      cache_->Count("streams.stalled");
      return absl::DeadlineExceededError(
          absl::StrCat("put: no message came for ",
                       std::chrono::duration<double>(dispatch_->patience().silence).count(), " s"));
    }
    if (!hand_out_.has_value())
      return absl::CancelledError("put: the stream ended before its header");
    return absl::OkStatus();
  }

  absl::Status TakeHeader(const grpc::ByteBuffer& buffer) {
    v1::PutChunk first;
    if (buffer.Length() > LongRequests::kShortMessageBytes) {
      return absl::InvalidArgumentError(absl::StrCat("put: the header has ", buffer.Length(),
                                                     " bytes, at most ",
                                                     LongRequests::kShortMessageBytes));
    }
    PREFIXD_RETURN_IF_ERROR(ReadSmall(buffer, &first));
    if (!first.has_header())
      return absl::InvalidArgumentError("put: the first message is not the header");
    header_.Swap(first.mutable_header());
    reservation_ = {header_.reservation()};
    session_ = {header_.session()};
    // Before hand_out_ is set: nothing of a foreign session may be taken back or abandoned.
    PREFIXD_RETURN_IF_ERROR(dispatch_->CheckSession(*context_, session_));
    hand_out_.emplace(cache_, session_);
    return cache_->CheckReservation(session_, reservation_);
  }

  absl::Status TakePage(const grpc::ByteBuffer& buffer) {
    ++number_;
    const wire::PageMessage message(buffer);
    const std::optional<wire::ParsedPiece> parsed = message.Header();
    return parsed.has_value() ? TakePiece(message, *parsed) : TakeUnusual(buffer);
  }

  // Takes a page whose data comes last, as everybody writes it.
  absl::Status TakePiece(const wire::PageMessage& message, const wire::ParsedPiece& parsed) {
    PREFIXD_ASSIGN_OR_RETURN(cache::PagePiece piece, ReadPiece(parsed.header));
    message.RunsFrom(parsed.header_bytes, &runs_);
    piece.runs = runs_;
    return cache_->PutPage(session_, reservation_, piece, ForOneWait());
  }

  // Takes a page in any other form that protobuf allows.
  absl::Status TakeUnusual(const grpc::ByteBuffer& buffer) {
    v1::PutChunk chunk;
    const absl::Status read = ReadSmall(buffer, &chunk);
    if (!read.ok() || !chunk.has_page()) {
      return absl::InvalidArgumentError(absl::StrCat("put: message ", number_, " is not a page",
                                                     read.ok() ? "" : ": ", read.message()));
    }
    PREFIXD_ASSIGN_OR_RETURN(cache::PagePiece piece, ReadPiece(wire::HeaderOf(chunk.page())));
    piece.data = base::AsBytes(chunk.page().data());
    return cache_->PutPage(session_, reservation_, piece, ForOneWait());
  }

  cache::Patience ForOneWait() const {
    return {std::min<base::Deadline>(until_, std::chrono::steady_clock::now() + kMaxWait),
            &gave_up_};
  }

  // Waits for the next message. kNothing: the stream is silent and has parked; another Run follows.
  Came Next(grpc::ByteBuffer* buffer) {
    base::MutexLock lock(mutex_);
    const base::Deadline linger = std::chrono::steady_clock::now() + dispatch_->patience().linger;
    bool in_time = true;
    while (queue_.empty() && !over_ && in_time) in_time = arrived_.WaitUntil(mutex_, linger);
    if (queue_.empty() && !over_) {
      Park();
      return Came::kNothing;
    }
    if (queue_.empty()) return Came::kEnd;
    buffer->Swap(&queue_.front());
    queue_.pop_front();
    if (!reading_ && !over_) {
      reading_ = true;
      StartRead(&read_);
    }
    return Came::kMessage;
  }

  cache::Cache* const cache_;
  Dispatch* const dispatch_;
  std::shared_ptr<void> charge_;
  Call call_;
  grpc::CallbackServerContext* const context_;
  std::unique_ptr<CallTrace> trace_;  // null: not traced
  const InboundCall counted_{context_->peer()};
  const StreamLimit limit_;
  const base::Deadline until_;
  grpc::ByteBuffer* const response_;
  const CommitCall commit_;
  const std::shared_ptr<Link> link_;
  std::atomic<bool> gave_up_{false};
  // Written by TakeHeader, which never runs beside Run; valid from then on.
  v1::CommitRequest header_;
  block::ReservationId reservation_;
  block::SessionId session_;
  std::optional<HandOut> hand_out_;  // set once the header came
  // Only Run's thread touches these.
  uint64_t number_ = 0;  // number of the last page's message
  wire::PageMessage::Runs runs_;

  grpc::ByteBuffer read_;  // gRPC's while a read is under way
  base::Mutex mutex_;
  base::CondVar arrived_;
  std::deque<grpc::ByteBuffer> queue_ PREFIXD_GUARDED_BY(mutex_);
  bool reading_ PREFIXD_GUARDED_BY(mutex_) = true;
  bool over_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stalled_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool no_share_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool in_header_ PREFIXD_GUARDED_BY(mutex_) = false;       // only OnHeader may end it
  base::Deadline silent_since_ PREFIXD_GUARDED_BY(mutex_);  // of a parked stream
  bool parked_ PREFIXD_GUARDED_BY(mutex_) = true;           // no Run is under way
  uint64_t silences_ PREFIXD_GUARDED_BY(mutex_) = 0;
  Shares::Share share_ PREFIXD_GUARDED_BY(mutex_);
  std::shared_ptr<void> running_ PREFIXD_GUARDED_BY(mutex_);  // held while it moves or lingers
  StreamAlarm alarm_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartPut(cache::Cache* cache, Dispatch* dispatch,
                                                    std::shared_ptr<void> charge,
                                                    grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response, CommitCall commit) {
  auto* stream =
      new PutStream(cache, dispatch, std::move(charge), context, response, std::move(commit));
  stream->Start();
  return stream;
}

}  // namespace prefixd::daemon
