// Put and Fetch of PrefixCacheService: pages on their way in and out.
#include "base/status.h"
#include "daemon/call.h"
#include "daemon/prefix_cache_service.h"
#include "daemon/requests.h"
#include "daemon/stream_deadline.h"
#include "wire/request.h"

namespace prefixd::daemon {
namespace {

// Writes what Cache::Fetch sends into one message that is used again and again, so that its
// megabyte is allocated once.
class StreamSink final : public cache::FetchSink {
 public:
  explicit StreamSink(grpc::ServerWriter<v1::FetchChunk>* writer) : writer_(writer) {}
  bool Page(const cache::PagePiece& piece) override {
    WritePiece(piece, page_.mutable_page());
    return Write(page_);
  }
  bool Ready(const cache::GroupReady& ready) override {
    v1::FetchChunk chunk;
    chunk.mutable_ready()->set_group(ready.group);
    chunk.mutable_ready()->set_usable_tokens(ready.usable_tokens);
    chunk.mutable_ready()->set_reason(static_cast<v1::ShortenReason>(ready.reason));
    return Write(chunk);
  }
  bool broken() const { return broken_; }

 private:
  bool Write(const v1::FetchChunk& chunk) {
    broken_ = broken_ || !writer_->Write(chunk);
    return !broken_;
  }

  grpc::ServerWriter<v1::FetchChunk>* const writer_;
  v1::FetchChunk page_;
  bool broken_ = false;
};

}  // namespace

grpc::Status PrefixCacheService::Put(grpc::ServerContext* context,
                                     grpc::ServerReader<v1::PutChunk>* reader,
                                     v1::CommitReply* reply) {
  Call call(cache_, "rpc.put");
  const StreamDeadline limit(context);
  v1::PutChunk first;
  if (!reader->Read(&first))
    return call.End(absl::CancelledError("put: the stream ended before its header"));
  if (!first.has_header())
    return call.End(absl::InvalidArgumentError("put: the first message is not the header"));
  const v1::CommitRequest& header = first.header();
  const block::SessionId session{header.session()};
  const block::ReservationId reservation{header.reservation()};
  absl::Status status = sessions_->draining()
                            ? absl::UnavailableError("put: the daemon is stopping")
                            : CheckSize(first);
  if (status.ok()) status = TakePages(session, reservation, DeadlineOf(*context), reader);
  if (status.ok() && context->IsCancelled())
    status = absl::CancelledError("put: the worker went away");
  if (status.ok() && header.tokens() > 0) status = DoCommit(header, reply);
  if (!status.ok())
    cache_->Abandon(session, reservation)
        .IgnoreError();  // unknown, perhaps: that is what `status` says
  reply->set_epoch(cache_->epoch());
  return call.End(status);
}

absl::Status PrefixCacheService::TakePages(block::SessionId session,
                                           block::ReservationId reservation,
                                           base::Deadline deadline,
                                           grpc::ServerReader<v1::PutChunk>* reader) {
  v1::PutChunk chunk;
  for (uint64_t message = 1; reader->Read(&chunk); ++message) {
    if (!chunk.has_page()) {
      return absl::InvalidArgumentError(absl::StrCat("put: message ", message, " is not a page"));
    }
    PREFIXD_ASSIGN_OR_RETURN(const cache::PagePiece piece, ReadPiece(chunk.page()));
    PREFIXD_RETURN_IF_ERROR(cache_->PutPage(session, reservation, piece, deadline));
  }
  return absl::OkStatus();
}

grpc::Status PrefixCacheService::Fetch(grpc::ServerContext* context,
                                       const v1::FetchRequest* request,
                                       grpc::ServerWriter<v1::FetchChunk>* writer) {
  Call call(cache_, "rpc.fetch");
  const StreamDeadline limit(context);
  if (absl::Status status = wire::Check(*request); !status.ok()) return call.End(status);
  StreamSink sink(writer);
  const cache::FetchRequest fetch{.lease = {request->lease()},
                                  .groups = {request->groups().begin(), request->groups().end()},
                                  .from_token = request->from_token()};
  const absl::Status status =
      cache_->Fetch({request->session()}, fetch, DeadlineOf(*context), &sink);
  return call.End(status.ok() && sink.broken() ? absl::CancelledError("fetch: the worker went away")
                                               : status);
}

}  // namespace prefixd::daemon
