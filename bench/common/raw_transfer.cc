#include "bench/common/raw_transfer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "bench/common/patience.h"
#include "bench/common/timing.h"
#include "client/cpp/page_chunk.h"
#include "client/cpp/raw_stream.h"
#include "client/cpp/unix_connections.h"
#include "wire/limits.h"
#include "wire/page_message.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kBlockTokens = PageSource::kBlockTokens;

absl::StatusOr<v1::ReserveReply> Reserve(RawSession& session, const RawSequence& sequence) {
  v1::ReserveRequest request;
  request.set_session(session.id());
  FillSequence(sequence, request.mutable_sequence());
  request.set_seeds(true);
  v1::ReserveReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  PREFIXD_RETURN_IF_ERROR(FromGrpc("reserve", session.stub().Reserve(&context, request, &reply)));
  return reply;
}

// What of a reservation one Commit publishes.
v1::CommitRequest HeaderOf(const RawSession& session, const RawSequence& sequence,
                           uint64_t reservation, uint32_t tokens) {
  v1::CommitRequest header;
  header.set_session(session.id());
  header.set_reservation(reservation);
  header.set_tokens(tokens);
  header.set_sequence_end(tokens == sequence.tokens.size());
  return header;
}

absl::Status CheckStored(const v1::CommitReply& reply) {
  for (const v1::BlockResult& block : reply.blocks()) {
    if (block.result() == v1::STORE_RESULT_REFUSED) {
      return absl::InternalError(
          absl::StrCat("commit: block at ", block.first_token(), " refused: ", block.reason()));
    }
  }
  return absl::OkStatus();
}

absl::Status CommitStaged(RawSession& session, const v1::CommitRequest& request, Moved* moved) {
  v1::CommitReply reply;
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  const double start = NowMicros();
  const grpc::Status status = session.stub().Commit(&context, request, &reply);
  if (moved != nullptr) moved->us += NowMicros() - start;
  PREFIXD_RETURN_IF_ERROR(FromGrpc("commit", status));
  return CheckStored(reply);
}

bool PutPage(client::RawStream& stream, const PageSource& source, const PageSource::Name& name,
             uint64_t seed) {
  const std::byte* const page = source.page(name);
  const uint64_t bytes = source.page_bytes(name.group);
  const std::shared_ptr<const void> kept(page, [](const void*) {});  // the source outlives the call
  base::Xxh3Stream sum;
  sum.Begin(seed);
  for (uint64_t at = 0; at < bytes; at += wire::kMaxPieceBytes) {
    const uint64_t length = std::min(wire::kMaxPieceBytes, bytes - at);
    sum.Update({page + at, length});
    const wire::PieceHeader piece{.group = name.group,
                                  .first_token = name.block * kBlockTokens,
                                  .tokens = kBlockTokens,
                                  .rung = 0,
                                  .page_bytes = bytes,
                                  .offset = at,
                                  .xxh3 = sum.Sum(),
                                  .sum_seed = seed,
                                  .data_bytes = length};
    if (!stream.Write(wire::MakePageMessage(piece, page + at, kept))) return false;
  }
  return true;
}

}  // namespace

void FillSequence(const RawSequence& sequence, v1::Sequence* proto) {
  proto->set_space(sequence.space);
  proto->mutable_tokens()->Add(sequence.tokens.begin(), sequence.tokens.end());
  proto->mutable_content()->Add(sequence.content.begin(), sequence.content.end());
}

RawSequence MakeSequence(uint64_t space, uint64_t number, uint32_t tokens) {
  return {.space = space, .number = number, .tokens = TokensOf({.seed = number, .tokens = tokens})};
}

absl::Status StoreStaged(RawSession& session, const PageSource& source, const RawSequence& sequence,
                         Moved* moved) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::ReserveReply plan, Reserve(session, sequence));
  const uint64_t room = session.staging().size() / source.block_bytes();
  if (room == 0) return absl::FailedPreconditionError("store: staging holds no block");
  const int blocks = plan.blocks_size();
  for (int first = 0; first < blocks; first += static_cast<int>(room)) {
    const int end = std::min(blocks, first + static_cast<int>(room));
    v1::CommitRequest request =
        HeaderOf(session, sequence, plan.reservation(), static_cast<uint32_t>(end) * kBlockTokens);
    uint64_t offset = 0;
    for (uint32_t group = 0; group < source.groups(); ++group) {
      v1::StagedPages* const staged = request.add_staged();
      staged->set_group(group);
      for (int block = first; block < end; ++block) {
        if (plan.blocks(block).state() == v1::BLOCK_STATE_PRESENT) continue;
        const PageSource::Name name{sequence.number, group, static_cast<uint32_t>(block)};
        std::memcpy(session.staging().data() + offset, source.page(name), source.page_bytes(group));
        staged->add_first_token(static_cast<uint32_t>(block) * kBlockTokens);
        staged->add_rung(0);
        staged->add_offset(offset);
        offset += source.page_bytes(group);
      }
    }
    if (moved != nullptr) moved->bytes += offset;
    PREFIXD_RETURN_IF_ERROR(CommitStaged(session, request, moved));
  }
  return absl::OkStatus();
}

absl::Status StorePut(RawSession& session, const PageSource& source, const RawSequence& sequence,
                      Moved* moved) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::ReserveReply plan, Reserve(session, sequence));
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  const double start = NowMicros();
  client::RawStream stream(session.page_channel(), "/prefixd.v1.PrefixCache/Put", &context);
  v1::PutChunk header;
  *header.mutable_header() = HeaderOf(session, sequence, plan.reservation(),
                                      static_cast<uint32_t>(sequence.tokens.size()));
  bool open = stream.Write(client::Serialize(header));
  client::EnlargeSendBuffers(session.address());
  for (int block = 0; open && block < plan.blocks_size(); ++block) {
    if (plan.blocks(block).state() == v1::BLOCK_STATE_PRESENT) continue;
    for (uint32_t group = 0; open && group < source.groups(); ++group) {
      open = PutPage(stream, source, {sequence.number, group, static_cast<uint32_t>(block)},
                     plan.blocks(block).seed(static_cast<int>(group)));
    }
    if (moved != nullptr) moved->bytes += source.block_bytes();
  }
  grpc::ByteBuffer bytes;
  v1::CommitReply reply;
  const bool answered =
      open && stream.WritesDone() && stream.Read(&bytes) && client::Parse(bytes, &reply);
  PREFIXD_RETURN_IF_ERROR(FromGrpc("put", stream.Finish()));
  if (moved != nullptr) moved->us += NowMicros() - start;
  if (!answered) return absl::InternalError("put: no answer");
  return CheckStored(reply);
}

v1::AcquireRequest AcquireOf(const RawSession& session, const RawSequence& sequence) {
  v1::AcquireRequest request;
  request.set_session(session.id());
  FillSequence(sequence, request.add_items()->mutable_sequence());
  return request;
}

absl::Status AcquireAndCompare(RawSession& session, const PageSource& source,
                               const RawSequence& sequence, v1::Answer* answer) {
  PREFIXD_ASSIGN_OR_RETURN(v1::AcquireReply reply, session.Acquire(AcquireOf(session, sequence)));
  if (reply.answers_size() != 1) return absl::InternalError("acquire: not one answer");
  *answer = std::move(*reply.mutable_answers(0));
  if (answer->restorable_tokens() != sequence.tokens.size()) {
    return absl::NotFoundError(absl::StrCat("acquire: ", answer->restorable_tokens(), " of ",
                                            sequence.tokens.size(), " tokens"));
  }
  if (!session.attached().arena()) return absl::OkStatus();
  PREFIXD_RETURN_IF_ERROR(session.WaitReady(kBlockTokens, answer));
  return CompareInPlace(session, source, sequence, *answer);
}

absl::Status CompareInPlace(const RawSession& session, const PageSource& source,
                            const RawSequence& sequence, const v1::Answer& answer) {
  for (const v1::GroupPages& pages : answer.pages()) {
    for (int block = 0; block < pages.offset_size(); ++block) {
      const PageSource::Name name{sequence.number, pages.group(), static_cast<uint32_t>(block)};
      if (!source.Matches(name, session.page(pages.offset(block)))) {
        return absl::DataLossError(
            absl::StrCat("acquire: wrong bytes in block ", block, " of group ", pages.group()));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status FetchAll(RawSession& session, const PageSource& source, const RawSequence& sequence,
                      uint64_t lease, bool compare, Moved* moved) {
  v1::FetchRequest request;
  request.set_session(session.id());
  request.set_lease(lease);
  request.set_seeded_sums(true);
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  base::Xxh3Stream sum;
  const double start = NowMicros();
  client::RawStream stream(session.page_channel(), "/prefixd.v1.PrefixCache/Fetch", &context);
  if (stream.Write(client::Serialize(request))) stream.WritesDone();
  grpc::ByteBuffer bytes;
  uint64_t received = 0;
  absl::Status wrong;
  while (stream.Read(&bytes)) {
    client::FetchedChunk chunk;
    if (!chunk.Parse(bytes)) return absl::DataLossError("fetch: not a chunk");
    if (!chunk.is_page()) continue;
    const wire::PieceHeader& piece = chunk.piece();
    received += piece.data_bytes;
    const std::byte* wanted =
        source.page({sequence.number, piece.group, piece.first_token / kBlockTokens}) +
        piece.offset;
    bool same = true;
    sum.Begin(piece.sum_seed);
    for (const std::span<const std::byte> run : chunk.runs()) {
      sum.Update(run);
      same = same && (!compare || std::memcmp(run.data(), wanted, run.size()) == 0);
      wanted += run.size();
    }
    if (sum.Finish() != piece.xxh3 || !same) {
      wrong = absl::DataLossError(absl::StrCat("fetch: wrong bytes at ", piece.first_token));
    }
  }
  PREFIXD_RETURN_IF_ERROR(FromGrpc("fetch", stream.Finish()));
  if (moved != nullptr) *moved = {.bytes = received, .us = NowMicros() - start};
  const uint64_t expected = sequence.tokens.size() / kBlockTokens * source.block_bytes();
  if (wrong.ok() && received != expected) {
    return absl::DataLossError(absl::StrCat("fetch: ", received, " of ", expected, " bytes"));
  }
  return wrong;
}

}  // namespace prefixd::bench
