#include "publish.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "block/page_layout.h"
#include "wire/answer.h"
#include "wire/limits.h"
#include "wire/sequence.h"

namespace prefixd::client {
namespace {

// Bytes put before they are published: bounds what a reservation holds in the daemon's RAM.
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;

class Publication {
 public:
  Publication(Connection& connection, const SpaceState& space, const SequencePages& pages,
              const PublishRequest& request)
      : connection_(connection), space_(space), pages_(pages), request_(request) {}

  absl::Status Run() {
    PREFIXD_RETURN_IF_ERROR(Reserve());
    const std::vector<block::BlockPlan>& blocks = plan_.blocks;
    const auto first_foreign =
        std::find_if(blocks.begin(), blocks.end(),
                     [&](const block::BlockPlan& b) { return IsMissing(b) && !IsOwn(b); });
    for (auto begin = blocks.begin(); begin != first_foreign;) {
      const auto end = BatchEnd(begin, first_foreign);
      PREFIXD_RETURN_IF_ERROR(StoreBatch({begin, end}));
      begin = end;
    }
    if (first_foreign == blocks.end()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("commit: the cache lost the block at token ",
                                                      first_foreign->first_token,
                                                      ", what follows it cannot be stored"));
  }
  const CommitInfo& info() const { return info_; }
  block::ReservationId reservation() const { return plan_.reservation; }

 private:
  using Blocks = std::span<const block::BlockPlan>;

  static bool IsMissing(const block::BlockPlan& b) {
    return b.state != block::BlockState::kPresent;
  }
  uint32_t Index(const block::BlockPlan& b) const { return b.first_token / pages_.block_tokens(); }
  bool IsOwn(const block::BlockPlan& b) const {
    for (uint32_t group = 0; group < space_.groups().size(); ++group) {
      if (pages_.own_page(group, Index(b)).bytes == nullptr) return false;
    }
    return true;
  }

  absl::Status Reserve() {
    v1::ReserveRequest request;
    request.set_session(request_.space.session.id);
    wire::ToProto(request_.space.handle, request_.sequence, request.mutable_sequence());
    for (uint32_t group = 0; group < space_.groups().size(); ++group) {
      request.add_writable(pages_.rungs_used(group));
    }
    PREFIXD_ASSIGN_OR_RETURN(const v1::ReserveReply reply,
                             Call(&Connection::Stub::Reserve, request));
    PREFIXD_ASSIGN_OR_RETURN(plan_,
                             wire::FromProto(reply, static_cast<uint32_t>(space_.groups().size())));
    return CheckPlan();
  }

  // Our pages are cut where the plan must cut them.
  absl::Status CheckPlan() const {
    const uint32_t tokens = static_cast<uint32_t>(request_.sequence.tokens.size());
    uint32_t at = 0;
    for (const block::BlockPlan& b : plan_.blocks) {
      if (b.first_token != at || b.tokens != std::min(pages_.block_tokens(), tokens - at)) break;
      at += b.tokens;
    }
    if (at == tokens) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("commit: the daemon's plan breaks off at token ", at, " of ", tokens));
  }

  std::vector<block::BlockPlan>::const_iterator BatchEnd(
      std::vector<block::BlockPlan>::const_iterator begin,
      std::vector<block::BlockPlan>::const_iterator end) const {
    uint64_t bytes = 0;
    auto at = begin;
    for (; at != end && bytes < kBatchBytes; ++at) {
      if (IsMissing(*at)) bytes += at->tokens * space_.payload_bytes_per_token();
    }
    return at;
  }

  v1::CommitRequest Header(Blocks blocks) const {
    v1::CommitRequest header;
    header.set_session(request_.space.session.id);
    header.set_reservation(plan_.reservation.value);
    header.set_tokens(blocks.back().first_token + blocks.back().tokens);
    header.set_sequence_end(request_.sequence_end &&
                            header.tokens() == request_.sequence.tokens.size());
    return header;
  }

  absl::Status StoreBatch(Blocks blocks) {
    if (std::none_of(blocks.begin(), blocks.end(), IsMissing)) {
      PREFIXD_ASSIGN_OR_RETURN(const v1::CommitReply reply,
                               Call(&Connection::Stub::Commit, Header(blocks)));
      return Count(reply);
    }
    grpc::ClientContext context;
    context.set_deadline(WallClock(request_.deadline));
    v1::CommitReply reply;
    const std::unique_ptr<grpc::ClientWriter<v1::PutChunk>> stream =
        connection_.stub().Put(&context, &reply);
    v1::PutChunk chunk;
    *chunk.mutable_header() = Header(blocks);
    bool open = stream->Write(chunk);
    for (auto b = blocks.begin(); open && b != blocks.end(); ++b) {
      for (uint32_t group = 0; open && IsMissing(*b) && group < space_.groups().size(); ++group) {
        open = PutPage(*b, group, stream.get());
      }
    }
    stream->WritesDone();
    PREFIXD_RETURN_IF_ERROR(FromGrpc(stream->Finish()));
    return Count(reply);
  }

  // False when the stream is broken: Finish() says why.
  bool PutPage(const block::BlockPlan& b, uint32_t group,
               grpc::ClientWriter<v1::PutChunk>* stream) {
    const block::LayerGroup& layers = space_.groups()[group];
    const SequencePages::OwnPage own = pages_.own_page(group, Index(b));
    const uint64_t page_bytes = block::LayoutOfPage(layers, own.rung, b.tokens).page_bytes;
    const std::byte* page = own.bytes;
    if (b.tokens < pages_.block_tokens()) {
      cut_.resize(page_bytes);
      block::CutPage(layers, own.rung, own.bytes, pages_.block_tokens(), b.tokens, cut_.data());
      page = cut_.data();
    }
    for (uint64_t offset = 0; offset < page_bytes; offset += wire::kMaxPieceBytes) {
      const std::span<const std::byte> data{page + offset,
                                            std::min(wire::kMaxPieceBytes, page_bytes - offset)};
      v1::PutChunk chunk;
      v1::PageBytes* piece = chunk.mutable_page();
      piece->set_group(group);
      piece->set_first_token(b.first_token);
      piece->set_tokens(b.tokens);
      piece->set_rung(own.rung);
      piece->set_page_bytes(page_bytes);
      piece->set_offset(offset);
      piece->set_xxh3(base::Xxh3(data));
      piece->set_data(data.data(), data.size());
      if (!stream->Write(chunk)) return false;
    }
    return true;
  }

  absl::Status Count(const v1::CommitReply& reply) {
    if (reply.epoch() != request_.space.session.epoch) {
      return absl::UnavailableError("commit: the daemon restarted");
    }
    info_.stored_tokens += reply.stored_tokens();
    info_.duplicate_tokens += reply.duplicate_tokens();
    for (const v1::BlockResult& result : reply.blocks()) {
      if (result.result() != v1::STORE_RESULT_REFUSED) continue;
      return absl::ResourceExhaustedError(absl::StrCat(
          "commit: the block at token ", result.first_token(), " was refused: ", result.reason()));
    }
    return absl::OkStatus();
  }

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(Connection::Method<Request, Reply> method, const Request& request) {
    return connection_.Call(method, request_.space.session, request, request_.deadline);
  }

  Connection& connection_;
  const SpaceState& space_;
  const SequencePages& pages_;
  const PublishRequest& request_;
  block::ReservePlan plan_;
  CommitInfo info_;
  std::vector<std::byte> cut_;
};

}  // namespace

Published Publish(Connection& connection, const SpaceState& space, const SequencePages& pages,
                  const PublishRequest& request) {
  Publication publication(connection, space, pages, request);
  Published published;
  published.status = publication.Run();
  published.info = publication.info();
  if (!published.status.ok()) published.unfinished = publication.reservation();
  return published;
}

}  // namespace prefixd::client
