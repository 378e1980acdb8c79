#include "daemon/requests.h"

#include "base/status.h"
#include "daemon/message.h"
#include "wire/request.h"
#include "wire/sequence.h"

namespace prefixd::daemon {

namespace {

bool IsSameSet(const v1::AcquireRequest& request, int a, int b) {
  return request.items(a).set() != 0 && request.items(a).set() == request.items(b).set();
}

// Returns true if the item has the tokens and content of the one before it in its set.
bool IsLikeTheOneBefore(const v1::AcquireRequest& request, int item) {
  const v1::Sequence& sequence = request.items(item).sequence();
  return item > 0 && sequence.tokens().empty() && sequence.content().empty() &&
         IsSameSet(request, item - 1, item);
}

}  // namespace

size_t EndOfSet(const v1::AcquireRequest& request, size_t begin) {
  const int first = static_cast<int>(begin);
  int end = first + 1;
  while (end < request.items_size() && IsSameSet(request, first, end)) ++end;
  return static_cast<size_t>(end);
}

absl::StatusOr<std::vector<cache::Request>> TakeItems(v1::AcquireRequest* request,
                                                      const MessageLimit& limit) {
  PREFIXD_RETURN_IF_ERROR(wire::Check(*request));
  std::vector<cache::Request> items;
  items.reserve(static_cast<size_t>(request->items_size()));
  uint64_t bytes = 0;  // tokens taken from the item before were not counted in the message
  for (int i = 0; i < request->items_size(); ++i) {
    v1::AcquireRequest::Item& from = *request->mutable_items(i);
    wire::Sequence sequence;
    if (IsLikeTheOneBefore(*request, i)) {
      sequence = {.space = {from.sequence().space()},
                  .tokens = items.back().tokens,
                  .content = items.back().content};
    } else {
      PREFIXD_ASSIGN_OR_RETURN(sequence, wire::FromProto(from.sequence()));
      from.clear_sequence();
    }
    bytes += sequence.tokens.size() * sizeof(block::Token) +
             sequence.content.size() * sizeof(block::ContentKey);
    if (bytes > limit.unfolded_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("acquire: the tokens and content of its items take more than ",
                       limit.unfolded_bytes, " bytes of memory, which is the most of one request"));
    }
    items.push_back({.space = sequence.space,
                     .tokens = std::move(sequence.tokens),
                     .content = std::move(sequence.content),
                     .max_tokens = from.max_tokens() == 0 ? block::kNoLimit : from.max_tokens(),
                     .groups = {from.groups().begin(), from.groups().end()},
                     .readable = {from.readable().begin(), from.readable().end()},
                     .causal_content = from.causal_content(),
                     .request_id = from.request_id(),
                     .table = from.table(),
                     .prefill_tokens_per_s = from.prefill_tokens_per_s(),
                     .wait_pending = std::chrono::milliseconds(from.wait_pending_ms())});
  }
  return items;
}

cache::ReserveRequest ReserveOf(const v1::AcquireRequest::Item& from, cache::Request item) {
  return {.space = item.space,
          .tokens = std::move(item.tokens),
          .content = std::move(item.content),
          .groups = std::move(item.groups),
          .writable = {from.writable().begin(), from.writable().end()},
          .seeds = from.seeds(),
          .turn_ends = {from.turn_ends().begin(), from.turn_ends().end()}};
}

absl::StatusOr<cache::ReserveRequest> ReadReserve(const v1::ReserveRequest& request) {
  PREFIXD_RETURN_IF_ERROR(wire::Check(request));
  PREFIXD_ASSIGN_OR_RETURN(wire::Sequence sequence, wire::FromProto(request.sequence()));
  return cache::ReserveRequest{
      .space = sequence.space,
      .tokens = std::move(sequence.tokens),
      .content = std::move(sequence.content),
      .groups = {request.groups().begin(), request.groups().end()},
      .writable = {request.writable().begin(), request.writable().end()},
      .seeds = request.seeds(),
      .turn_ends = {request.turn_ends().begin(), request.turn_ends().end()}};
}

absl::StatusOr<cache::Request> ReadSequence(const v1::Sequence& from) {
  PREFIXD_ASSIGN_OR_RETURN(wire::Sequence sequence, wire::FromProto(from));
  cache::Request request;
  request.space = sequence.space;
  request.tokens = std::move(sequence.tokens);
  request.content = std::move(sequence.content);
  return request;
}

cache::Released ReadReleased(const v1::Released& released) {
  return {.lease = {released.lease()},
          .used_tokens = released.used_tokens(),
          .first_token_us = released.first_token_us(),
          .load_us = released.load_us(),
          .prefill_tokens_per_s = released.prefill_tokens_per_s()};
}

absl::StatusOr<cache::CommitRequest> ReadCommit(const v1::CommitRequest& request) {
  PREFIXD_RETURN_IF_ERROR(wire::Check(request));
  cache::CommitRequest commit{.reservation = {request.reservation()},
                              .tokens = request.tokens(),
                              .sequence_end = request.sequence_end(),
                              .ends = {request.ends().begin(), request.ends().end()},
                              .staged = {},
                              .lease = request.lease(),
                              .durability = request.durability() == v1::DURABILITY_SSD
                                                ? block::Durability::kSsd
                                                : block::Durability::kRam};
  for (const v1::StagedPages& staged : request.staged()) {
    for (int i = 0; i < staged.offset_size(); ++i) {
      commit.staged.push_back({.first_token = staged.first_token(i),
                               .group = staged.group(),
                               .rung = staged.rung(i),
                               .offset = staged.offset(i)});
    }
  }
  return commit;
}

cache::FetchRequest ReadFetch(const v1::FetchRequest& request) {
  return {.lease = {request.lease()},
          .groups = {request.groups().begin(), request.groups().end()},
          .from_token = request.from_token(),
          .seeded_sums = request.seeded_sums()};
}

cache::PagePiece ReadPiece(const wire::PieceHeader& header) {
  return {.group = header.group,
          .first_token = header.first_token,
          .tokens = header.tokens,
          .rung = header.rung,
          .page_bytes = header.page_bytes,
          .offset = header.offset,
          .xxh3 = header.xxh3,
          .sum_seed = header.sum_seed,
          .data = {}};
}

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

}  // namespace prefixd::daemon
