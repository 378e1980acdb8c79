#include "daemon/requests.h"

#include "base/bytes.h"
#include "base/status.h"
#include "wire/limits.h"
#include "wire/page.h"
#include "wire/request.h"
#include "wire/sequence.h"

namespace prefixd::daemon {

static_assert(wire::kMaxTokens == cache::kMaxTokens && wire::kMaxItems == cache::kMaxItems &&
              wire::kMaxPieceBytes == cache::kMaxPiece);

absl::StatusOr<std::vector<cache::Request>> ReadItems(const v1::AcquireRequest& request) {
  PREFIXD_RETURN_IF_ERROR(wire::Check(request));
  std::vector<cache::Request> items;
  items.reserve(static_cast<size_t>(request.items_size()));
  for (const v1::AcquireRequest::Item& from : request.items()) {
    PREFIXD_ASSIGN_OR_RETURN(wire::Sequence sequence, wire::FromProto(from.sequence()));
    items.push_back({.space = sequence.space,
                     .tokens = std::move(sequence.tokens),
                     .content = std::move(sequence.content),
                     .max_tokens = from.max_tokens() == 0 ? block::kNoLimit : from.max_tokens(),
                     .groups = {from.groups().begin(), from.groups().end()},
                     .readable = {from.readable().begin(), from.readable().end()},
                     .causal_content = from.causal_content(),
                     .request_id = from.request_id()});
  }
  return items;
}

absl::StatusOr<cache::ReserveRequest> ReadReserve(const v1::ReserveRequest& request) {
  PREFIXD_RETURN_IF_ERROR(wire::Check(request));
  PREFIXD_ASSIGN_OR_RETURN(wire::Sequence sequence, wire::FromProto(request.sequence()));
  return cache::ReserveRequest{.space = sequence.space,
                               .tokens = std::move(sequence.tokens),
                               .content = std::move(sequence.content),
                               .groups = {request.groups().begin(), request.groups().end()},
                               .writable = {request.writable().begin(), request.writable().end()}};
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
  return cache::CommitRequest{.reservation = {request.reservation()},
                              .tokens = request.tokens(),
                              .sequence_end = request.sequence_end(),
                              .ends = {request.ends().begin(), request.ends().end()}};
}

absl::StatusOr<cache::PagePiece> ReadPiece(const v1::PageBytes& page) {
  PREFIXD_RETURN_IF_ERROR(wire::CheckPiece(page));
  return cache::PagePiece{.group = page.group(),
                          .first_token = page.first_token(),
                          .tokens = page.tokens(),
                          .rung = page.rung(),
                          .page_bytes = page.page_bytes(),
                          .offset = page.offset(),
                          .xxh3 = page.xxh3(),
                          .data = base::AsBytes(page.data())};
}

void WritePiece(const cache::PagePiece& piece, v1::PageBytes* page) {
  page->set_group(piece.group);
  page->set_first_token(piece.first_token);
  page->set_tokens(piece.tokens);
  page->set_rung(piece.rung);
  page->set_page_bytes(piece.page_bytes);
  page->set_offset(piece.offset);
  page->set_xxh3(piece.xxh3);
  page->set_data(piece.data.data(), piece.data.size());
}

}  // namespace prefixd::daemon
