#include "daemon/put_stream.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status.h"
#include "daemon/call.h"
#include "daemon/requests.h"
#include "daemon/stream_limit.h"
#include "prefixd/v1/prefix_cache.grpc.pb.h"  // how messages become bytes
#include "wire/limits.h"
#include "wire/page.h"
#include "wire/stream_cpu.h"

namespace prefixd::daemon {
namespace {

using Reactor = grpc::ServerReadReactor<grpc::ByteBuffer>;
using Bytes = std::span<const std::byte>;

constexpr size_t kMessagesAhead = 2;

// A message where gRPC received it, in as many slices as it came.
class Message {
 public:
  explicit Message(const grpc::ByteBuffer& buffer) {
    whole_ = buffer.Dump(&slices_).ok();
    for (const grpc::Slice& slice : slices_) bytes_ += slice.size();
  }
  bool whole() const { return whole_; }  // false: compressed, and not readable
  size_t bytes() const { return bytes_; }

  std::optional<wire::ParsedPiece> Header() const {
    std::array<std::byte, wire::kMaxPieceHeaderBytes> start;
    size_t filled = 0;
    ForEach(0, [&](Bytes run) {
      const size_t more = std::min(run.size(), start.size() - filled);
      std::memcpy(start.data() + filled, run.data(), more);
      filled += more;
      return filled < start.size();
    });
    return wire::ReadPieceHeader(Bytes(start).first(filled), bytes_);
  }
  // Runs of bytes from `from` to the end; `take` returns false to stop.
  template <typename Take>
  void ForEach(size_t from, const Take& take) const {
    for (const grpc::Slice& slice : slices_) {
      const size_t skip = std::min(from, slice.size());
      from -= skip;
      if (skip == slice.size()) continue;
      const Bytes run(reinterpret_cast<const std::byte*>(slice.begin()) + skip,
                      slice.size() - skip);
      if (!take(run)) return;
    }
  }

 private:
  std::vector<grpc::Slice> slices_;
  size_t bytes_ = 0;
  bool whole_ = false;
};

template <typename Proto>
bool Parse(const grpc::ByteBuffer& buffer, Proto* proto) {
  grpc::ByteBuffer bytes = buffer;
  return grpc::SerializationTraits<Proto>::Deserialize(&bytes, proto).ok();
}

class PutStream final : public Reactor {
 public:
  PutStream(cache::Cache* cache, Dispatch* dispatch, grpc::CallbackServerContext* context,
            grpc::ByteBuffer* response, CommitCall commit)
      : cache_(cache),
        dispatch_(dispatch),
        call_(cache, "rpc.put"),
        context_(context),
        limit_(context),
        until_(DeadlineOf(*context, kMaxStream)),
        response_(response),
        commit_(std::move(commit)),
        link_(std::make_shared<Link>()),
        carried_(dispatch->carriers(), CallerCpu(*context)) {}
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
    Park();
    StartRead(&read_);
  }

  void OnReadDone(bool ok) override {
    base::MutexLock lock(mutex_);
    if (ok) {
      carried_.Carried(read_.Length());
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
    Wake();
  }
  void OnDone() override {
    if (context_->IsCancelled() && hand_out_.has_value() && !hand_out_->empty()) {
      dispatch_->later()->Post(
          [taken = std::make_shared<HandOut>(*std::move(hand_out_))] { taken->TakeBack(); });
    }
    delete this;
  }

 private:
  enum class Came { kMessage, kNothing, kEnd };
  // Between the stream and an alarm that may ring when it is gone.
  struct Link {
    base::Mutex mutex;  // taken before the stream's own
    PutStream* stream PREFIXD_GUARDED_BY(mutex) = nullptr;
  };

  // Silent from now on: no thread, and nothing that a drain waits for.
  void Park() PREFIXD_REQUIRES(mutex_) {
    parked_ = true;
    share_.reset();
    running_.reset();
    alarm_.Arm(dispatch_->patience().silence, [link = link_, silence = ++silences_] {
      base::MutexLock lock(link->mutex);
      if (link->stream != nullptr) link->stream->Stall(silence);
    });
  }
  void Stall(uint64_t silence) PREFIXD_EXCLUDES(mutex_) {
    base::MutexLock lock(mutex_);
    if (!parked_ || silence != silences_) return;
    stalled_ = over_ = true;
    Wake();
  }
  // Something came. A stream whose session is known needs its share of the threads to go on; to
  // read a header takes no time, and to end a stream needs none.
  void Wake() PREFIXD_REQUIRES(mutex_) {
    if (!parked_) return arrived_.NotifyAll();
    parked_ = false;
    alarm_.Disarm();
    running_ = dispatch_->Running();
    const bool ends = stalled_ || gave_up_;
    if (!ends && session_known_) {
      share_ = dispatch_->stream_shares()->Take(session_, context_->peer());
      no_share_ = share_ == nullptr;
    } else if (!ends && dispatch_->streams()->TryRun([this] { Run(); })) {
      return;
    } else {
      no_thread_ = !ends;
    }
    if (no_share_ || no_thread_) {
      over_ = true;
      queue_.clear();
    }
    (share_ != nullptr ? dispatch_->streams() : dispatch_->later())->Post([this] { Run(); });
  }

  // On a thread, while messages come. Nothing of this may be touched afterwards.
  void Run() {
    grpc::ByteBuffer buffer;
    absl::Status status;
    while (status.ok()) {
      const Came came = Next(&buffer);
      if (came == Came::kNothing) return;
      if (came == Came::kEnd) break;
      status = hand_out_.has_value() ? TakePage(buffer) : TakeHeader(buffer);
    }
    End(status);
  }

  void End(absl::Status status) {
    v1::CommitReply reply;
    if (status.ok()) status = Ended();
    if (status.ok() && header_.tokens() > 0) {
      status = commit_(header_, ForOneWait(), &*hand_out_, &reply);
    }
    // What a worker leaves behind fails in many ways, as its session ends: that it went is why.
    if (context_->IsCancelled()) status = absl::CancelledError("put: the worker went away");
    reply.set_epoch(cache_->epoch());
    bool own = false;
    if (!grpc::SerializationTraits<v1::CommitReply>::Serialize(reply, response_, &own).ok()) {
      status = absl::InternalError("put: the reply cannot be written");
    }
    if (!status.ok() && hand_out_.has_value()) {
      hand_out_->TakeBack();
      cache_->Abandon(session_, reservation_)
          .IgnoreError();  // unknown, perhaps: that is what `status` says
    }
    Finish(call_.End(status));
  }

  // Whether the stream ended as one does.
  absl::Status Ended() {
    base::MutexLock lock(mutex_);
    if (gave_up_) return absl::CancelledError("put: the worker went away");
    if (no_share_ || no_thread_) {
      const size_t most = dispatch_->streams()->most();
      return absl::ResourceExhaustedError(
          (no_share_ ? dispatch_->RefuseShare(most) : dispatch_->Refuse(most)).error_message());
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
    if (!Parse(buffer, &first) || !first.has_header())
      return absl::InvalidArgumentError("put: the first message is not the header");
    const absl::Status size = CheckSize(first);
    header_.Swap(first.mutable_header());
    reservation_ = {header_.reservation()};
    {
      base::MutexLock lock(mutex_);
      session_ = {header_.session()};
      session_known_ = true;
    }
    hand_out_.emplace(cache_, session_);
    PREFIXD_RETURN_IF_ERROR(size);
    PREFIXD_RETURN_IF_ERROR(cache_->CheckReservation(session_, reservation_));
    Shares::Share share = dispatch_->stream_shares()->Take(session_, context_->peer());
    base::MutexLock lock(mutex_);
    no_share_ = share == nullptr;
    over_ = over_ || no_share_;
    if (no_share_) queue_.clear();
    share_ = std::move(share);
    return absl::OkStatus();
  }

  absl::Status TakePage(const grpc::ByteBuffer& buffer) {
    ++number_;
    const Message message(buffer);
    const std::optional<wire::ParsedPiece> parsed =
        message.whole() ? message.Header() : std::nullopt;
    return parsed.has_value() ? TakePiece(message, *parsed) : TakeUnusual(buffer);
  }

  // A page whose data comes last, as everybody writes it.
  absl::Status TakePiece(const Message& message, const wire::ParsedPiece& parsed) {
    PREFIXD_RETURN_IF_ERROR(wire::CheckPiece(parsed.header));
    cache::PagePiece piece = ReadPiece(parsed.header);
    runs_.clear();
    message.ForEach(parsed.header_bytes, [&](Bytes run) {
      runs_.push_back(run);
      return true;
    });
    piece.runs = runs_;
    return cache_->PutPage(session_, reservation_, piece, ForOneWait());
  }

  // Whatever protobuf allows beyond that.
  absl::Status TakeUnusual(const grpc::ByteBuffer& buffer) {
    v1::PutChunk chunk;
    if (!Parse(buffer, &chunk) || !chunk.has_page()) {
      return absl::InvalidArgumentError(absl::StrCat("put: message ", number_, " is not a page"));
    }
    const wire::PieceHeader header = wire::HeaderOf(chunk.page());
    PREFIXD_RETURN_IF_ERROR(wire::CheckPiece(header));
    cache::PagePiece piece = ReadPiece(header);
    piece.data = base::AsBytes(chunk.page().data());
    return cache_->PutPage(session_, reservation_, piece, ForOneWait());
  }

  cache::Patience ForOneWait() const {
    return {std::min<base::Deadline>(until_, std::chrono::steady_clock::now() + kMaxWait),
            &gave_up_};
  }

  // The next message. kNothing: the stream is silent and has parked; it goes on in another Run.
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
  Call call_;
  grpc::CallbackServerContext* const context_;
  const StreamLimit limit_;
  const base::Deadline until_;
  grpc::ByteBuffer* const response_;
  const CommitCall commit_;
  const std::shared_ptr<Link> link_;
  std::atomic<bool> gave_up_{false};
  // Of Run's thread.
  v1::CommitRequest header_;
  block::ReservationId reservation_;
  std::optional<HandOut> hand_out_;  // once the header came
  uint64_t number_ = 0;              // of the last page's message
  std::vector<Bytes> runs_;

  grpc::ByteBuffer read_;  // gRPC's while a read is under way
  base::Mutex mutex_;
  base::CondVar arrived_;
  std::deque<grpc::ByteBuffer> queue_ PREFIXD_GUARDED_BY(mutex_);
  bool reading_ PREFIXD_GUARDED_BY(mutex_) = true;
  bool over_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool stalled_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool no_share_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool no_thread_ PREFIXD_GUARDED_BY(mutex_) = false;
  bool parked_ PREFIXD_GUARDED_BY(mutex_) = false;  // no Run is under way
  uint64_t silences_ PREFIXD_GUARDED_BY(mutex_) = 0;
  bool session_known_ PREFIXD_GUARDED_BY(mutex_) = false;
  block::SessionId session_;  // written once, under mutex_, by Run's thread
  Shares::Share share_ PREFIXD_GUARDED_BY(mutex_);
  std::shared_ptr<void> running_ PREFIXD_GUARDED_BY(mutex_);  // while it is not parked
  StreamAlarm alarm_ PREFIXD_GUARDED_BY(mutex_);
  wire::Carriers::Stream carried_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartPut(cache::Cache* cache, Dispatch* dispatch,
                                                    grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response, CommitCall commit) {
  auto* stream = new PutStream(cache, dispatch, context, response, std::move(commit));
  stream->Start();
  return stream;
}

}  // namespace prefixd::daemon
