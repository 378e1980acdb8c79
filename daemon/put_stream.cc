#include "daemon/put_stream.h"

#include <algorithm>
#include <array>
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
#include "daemon/stream_deadline.h"
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
        call_(cache, "rpc.put"),
        context_(context),
        limit_(context),
        running_(dispatch->Running()),
        response_(response),
        commit_(std::move(commit)),
        carried_(dispatch->carriers(), CallerCpu(*context)) {}

  void Start(Dispatch* dispatch) {
    StartRead(&read_);
    if (!dispatch->streams()->TryRun([this] { Run(); })) Finish(dispatch->Refuse());
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
    arrived_.NotifyAll();
  }
  void OnCancel() override {
    base::MutexLock lock(mutex_);
    over_ = true;
    arrived_.NotifyAll();
  }
  void OnDone() override { delete this; }

 private:
  void Run() {
    v1::CommitReply reply;
    absl::Status status = TakeStream(&reply);
    reply.set_epoch(cache_->epoch());
    bool own = false;
    if (!grpc::SerializationTraits<v1::CommitReply>::Serialize(reply, response_, &own).ok()) {
      status = absl::InternalError("put: the reply cannot be written");
    }
    Finish(call_.End(status));  // nothing of this may be touched afterwards
  }

  absl::Status TakeStream(v1::CommitReply* reply) {
    grpc::ByteBuffer buffer;
    if (!Next(&buffer)) return absl::CancelledError("put: the stream ended before its header");
    v1::PutChunk first;
    if (!Parse(buffer, &first) || !first.has_header())
      return absl::InvalidArgumentError("put: the first message is not the header");
    const v1::CommitRequest& header = first.header();
    session_ = {header.session()};
    reservation_ = {header.reservation()};
    absl::Status status = CheckSize(first);
    if (status.ok()) status = TakePages();
    if (status.ok() && !context_->IsCancelled() && header.tokens() > 0)
      status = commit_(header, reply);
    // What a worker leaves behind fails in many ways, as its session ends: that it went is why.
    if (context_->IsCancelled()) status = absl::CancelledError("put: the worker went away");
    if (!status.ok()) {
      cache_->Abandon(session_, reservation_)
          .IgnoreError();  // unknown, perhaps: that is what `status` says
    }
    return status;
  }

  absl::Status TakePages() {
    const base::Deadline deadline = DeadlineOf(*context_);
    grpc::ByteBuffer buffer;
    for (uint64_t number = 1; Next(&buffer); ++number) {
      const Message message(buffer);
      const std::optional<wire::ParsedPiece> parsed =
          message.whole() ? message.Header() : std::nullopt;
      PREFIXD_RETURN_IF_ERROR(parsed.has_value() ? TakePiece(message, *parsed, deadline)
                                                 : TakeUnusual(buffer, number, deadline));
    }
    return absl::OkStatus();
  }

  // A page whose data comes last, as everybody writes it.
  absl::Status TakePiece(const Message& message, const wire::ParsedPiece& parsed,
                         base::Deadline deadline) {
    PREFIXD_RETURN_IF_ERROR(wire::CheckPiece(parsed.header));
    cache::PagePiece piece = ReadPiece(parsed.header);
    runs_.clear();
    message.ForEach(parsed.header_bytes, [&](Bytes run) {
      runs_.push_back(run);
      return true;
    });
    piece.runs = runs_;
    return cache_->PutPage(session_, reservation_, piece, deadline);
  }

  // Whatever protobuf allows beyond that.
  absl::Status TakeUnusual(const grpc::ByteBuffer& buffer, uint64_t number,
                           base::Deadline deadline) {
    v1::PutChunk chunk;
    if (!Parse(buffer, &chunk) || !chunk.has_page()) {
      return absl::InvalidArgumentError(absl::StrCat("put: message ", number, " is not a page"));
    }
    const wire::PieceHeader header = wire::HeaderOf(chunk.page());
    PREFIXD_RETURN_IF_ERROR(wire::CheckPiece(header));
    cache::PagePiece piece = ReadPiece(header);
    piece.data = base::AsBytes(chunk.page().data());
    return cache_->PutPage(session_, reservation_, piece, deadline);
  }

  // The next message; false at the end, whatever the end is.
  bool Next(grpc::ByteBuffer* buffer) {
    base::MutexLock lock(mutex_);
    while (queue_.empty() && !over_) arrived_.Wait(mutex_);
    if (queue_.empty()) return false;
    buffer->Swap(&queue_.front());
    queue_.pop_front();
    if (!reading_ && !over_) {
      reading_ = true;
      StartRead(&read_);
    }
    return true;
  }

  cache::Cache* const cache_;
  Call call_;
  grpc::CallbackServerContext* const context_;
  const StreamDeadline limit_;
  const std::shared_ptr<void> running_;
  grpc::ByteBuffer* const response_;
  const CommitCall commit_;
  // Of Run's thread.
  block::SessionId session_;
  block::ReservationId reservation_;
  std::vector<Bytes> runs_;

  grpc::ByteBuffer read_;  // gRPC's while a read is under way
  base::Mutex mutex_;
  base::CondVar arrived_;
  std::deque<grpc::ByteBuffer> queue_ PREFIXD_GUARDED_BY(mutex_);
  bool reading_ PREFIXD_GUARDED_BY(mutex_) = true;
  bool over_ PREFIXD_GUARDED_BY(mutex_) = false;
  wire::Carriers::Stream carried_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartPut(cache::Cache* cache, Dispatch* dispatch,
                                                    grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response, CommitCall commit) {
  auto* stream = new PutStream(cache, dispatch, context, response, std::move(commit));
  stream->Start(dispatch);
  return stream;
}

}  // namespace prefixd::daemon
