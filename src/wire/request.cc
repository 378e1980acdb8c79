#include "wire/request.h"

#include <cmath>

#include "block/layer_group.h"
#include "block/space_identity.h"
#include "wire/fields.h"
#include "wire/limits.h"
#include "wire/sequence.h"

namespace prefixd::wire {
namespace {

absl::Status CheckGroups(const std::string& field, int groups) {
  return CheckCount(field, static_cast<uint64_t>(groups), block::kMaxGroups);
}

absl::Status CheckRate(const std::string& field, double rate) {
  if (std::isfinite(rate) && rate >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", rate, ", must be finite and at least 0"));
}

absl::Status CheckItem(const v1::AcquireRequest::Item& item) {
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("acquire: request_id", item.request_id().size(), kMaxRequestIdBytes));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: groups", item.groups_size()));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: readable", item.readable_size()));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("acquire: writable", item.writable_size()));
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("acquire: turn_ends", static_cast<uint64_t>(item.turn_ends_size()), kMaxEnds));
  return CheckRate("acquire: prefill_tokens_per_s", item.prefill_tokens_per_s());
}

absl::Status CheckItems(const v1::AcquireRequest& request) {
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("acquire: items", static_cast<uint64_t>(request.items_size()), kMaxItems));
  for (const v1::AcquireRequest::Item& item : request.items())
    PREFIXD_RETURN_IF_ERROR(CheckItem(item));
  return absl::OkStatus();
}

bool IsSameSet(const v1::AcquireRequest& request, int a, int b) {
  return request.items(a).set() != 0 && request.items(a).set() == request.items(b).set();
}

// Returns true if the item has the tokens and content of the one before it in its set.
bool IsLikeTheOneBefore(const v1::AcquireRequest& request, int item) {
  const v1::Sequence& sequence = request.items(item).sequence();
  return item > 0 && sequence.tokens().empty() && sequence.content().empty() &&
         IsSameSet(request, item - 1, item);
}

absl::Status CheckStaged(const v1::StagedPages& staged) {
  const int pages = staged.first_token_size();
  if (staged.group() >= block::kMaxGroups || staged.rung_size() != pages ||
      staged.offset_size() != pages) {
    return absl::InvalidArgumentError(
        absl::StrCat("commit: staged group ", staged.group(), " (below ", block::kMaxGroups,
                     ") has columns of ", pages, " first_token, ", staged.rung_size(), " rung and ",
                     staged.offset_size(), " offset"));
  }
  for (const uint64_t offset : staged.offset()) {
    if (offset % kStagingAlignment == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("commit: staged offset ", offset,
                                                   " is not a multiple of ", kStagingAlignment));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Check(const v1::AttachRequest& request) {
  if (request.protocol() != kProtocol) {
    return absl::InvalidArgumentError(absl::StrCat("attach: protocol is ", request.protocol(),
                                                   ", this daemon speaks ", kProtocol));
  }
  PREFIXD_RETURN_IF_ERROR(CheckLength("attach: worker", request.worker().size(), kMaxWorkerBytes));
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("attach: library", request.library().size(), kMaxWorkerBytes));
  const size_t key = request.resume().size();
  if (key == 0 || key == kSessionKeyBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attach: resume has ", key, " bytes, wants ", kSessionKeyBytes, " or none"));
}

absl::StatusOr<block::NotShared> FromProto(const v1::NotSharedRequest& request) {
  if (request.model().empty()) return absl::InvalidArgumentError("not_shared: model is empty");
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("not_shared: model", request.model().size(), block::kMaxModelBytes));
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("not_shared: reason", request.reason().size(), kMaxReasonBytes));
  return block::NotShared{.model = request.model(), .reason = request.reason()};
}

absl::StatusOr<std::vector<block::Request>> TakeItems(v1::AcquireRequest* request,
                                                      uint64_t most_bytes) {
  PREFIXD_RETURN_IF_ERROR(CheckItems(*request));
  std::vector<block::Request> items;
  items.reserve(static_cast<size_t>(request->items_size()));
  uint64_t bytes = 0;  // tokens taken from the item before were not counted in the message
  for (int i = 0; i < request->items_size(); ++i) {
    v1::AcquireRequest::Item& from = *request->mutable_items(i);
    block::Request item;
    if (IsLikeTheOneBefore(*request, i)) {
      item.space = {from.sequence().space()};
      item.tokens = items.back().tokens;
      item.content = items.back().content;
    } else {
      PREFIXD_ASSIGN_OR_RETURN(item, FromProto(from.sequence()));
      from.clear_sequence();
    }
    bytes +=
        item.tokens.size() * sizeof(block::Token) + item.content.size() * sizeof(block::ContentKey);
    if (bytes > most_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("acquire: the tokens and content of its items take more than ", most_bytes,
                       " bytes of memory, which is the most of one request"));
    }
    if (from.max_tokens() != 0) item.max_tokens = from.max_tokens();
    item.groups = {from.groups().begin(), from.groups().end()};
    item.readable = {from.readable().begin(), from.readable().end()};
    item.causal_content = from.causal_content();
    item.request_id = from.request_id();
    item.table = from.table();
    item.prefill_tokens_per_s = from.prefill_tokens_per_s();
    item.wait_pending = std::chrono::milliseconds(from.wait_pending_ms());
    items.push_back(std::move(item));
  }
  return items;
}

block::ReserveRequest ReserveOf(const v1::AcquireRequest::Item& from, block::Request item) {
  return {.space = item.space,
          .tokens = std::move(item.tokens),
          .content = std::move(item.content),
          .groups = std::move(item.groups),
          .writable = {from.writable().begin(), from.writable().end()},
          .seeds = from.seeds(),
          .turn_ends = {from.turn_ends().begin(), from.turn_ends().end()}};
}

size_t EndOfSet(const v1::AcquireRequest& request, size_t begin) {
  const int first = static_cast<int>(begin);
  int end = first + 1;
  while (end < request.items_size() && IsSameSet(request, first, end)) ++end;
  return static_cast<size_t>(end);
}

absl::StatusOr<std::vector<block::Released>> FromProto(const Releases& releases) {
  std::vector<block::Released> read;
  for (const v1::Released& from : releases) {
    PREFIXD_RETURN_IF_ERROR(
        CheckRate("release: prefill_tokens_per_s", from.prefill_tokens_per_s()));
    read.push_back({.lease = {from.lease()},
                    .used_tokens = from.used_tokens(),
                    .first_token_us = from.first_token_us(),
                    .load_us = from.load_us(),
                    .prefill_tokens_per_s = from.prefill_tokens_per_s()});
  }
  return read;
}

absl::StatusOr<block::ReserveRequest> FromProto(const v1::ReserveRequest& request) {
  PREFIXD_RETURN_IF_ERROR(CheckGroups("reserve: groups", request.groups_size()));
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("reserve: turn_ends", static_cast<uint64_t>(request.turn_ends_size()), kMaxEnds));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("reserve: writable", request.writable_size()));
  PREFIXD_ASSIGN_OR_RETURN(block::Request sequence, FromProto(request.sequence()));
  return block::ReserveRequest{
      .space = sequence.space,
      .tokens = std::move(sequence.tokens),
      .content = std::move(sequence.content),
      .groups = {request.groups().begin(), request.groups().end()},
      .writable = {request.writable().begin(), request.writable().end()},
      .seeds = request.seeds(),
      .turn_ends = {request.turn_ends().begin(), request.turn_ends().end()}};
}

absl::StatusOr<block::CommitRequest> FromProto(const v1::CommitRequest& request) {
  PREFIXD_RETURN_IF_ERROR(
      CheckCount("commit: ends", static_cast<uint64_t>(request.ends_size()), kMaxEnds));
  PREFIXD_RETURN_IF_ERROR(CheckGroups("commit: staged", request.staged_size()));
  block::CommitRequest commit{.reservation = {request.reservation()},
                              .tokens = request.tokens(),
                              .sequence_end = request.sequence_end(),
                              .ends = {request.ends().begin(), request.ends().end()},
                              .staged = {},
                              .lease = request.lease(),
                              .durability = request.durability() == v1::DURABILITY_SSD
                                                ? block::Durability::kSsd
                                                : block::Durability::kRam};
  for (const v1::StagedPages& staged : request.staged()) {
    PREFIXD_RETURN_IF_ERROR(CheckStaged(staged));
    for (int i = 0; i < staged.offset_size(); ++i) {
      commit.staged.push_back({.first_token = staged.first_token(i),
                               .group = staged.group(),
                               .rung = staged.rung(i),
                               .offset = staged.offset(i)});
    }
  }
  return commit;
}

absl::StatusOr<block::FetchRequest> FromProto(const v1::FetchRequest& request) {
  PREFIXD_RETURN_IF_ERROR(CheckGroups("fetch: groups", request.groups_size()));
  return block::FetchRequest{.lease = {request.lease()},
                             .groups = {request.groups().begin(), request.groups().end()},
                             .from_token = request.from_token(),
                             .seeded_sums = request.seeded_sums()};
}

absl::StatusOr<block::Request> FromProto(const v1::PinRequest& request) {
  if (request.ttl_ms() > static_cast<uint64_t>(block::kMaxPinTtl.count())) {
    return absl::InvalidArgumentError(absl::StrCat("pin: ttl_ms is ", request.ttl_ms(),
                                                   ", at most a hundred years or 0 for no end"));
  }
  return FromProto(request.sequence());
}

}  // namespace prefixd::wire
