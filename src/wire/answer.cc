#include "wire/answer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "block/layer_group.h"
#include "wire/fields.h"

namespace prefixd::wire {
namespace {

static_assert(v1::MatchKind_MAX == static_cast<int>(block::MatchKind::kNone));
static_assert(v1::EndReason_MAX == static_cast<int>(block::EndReason::kIndexLoading));
static_assert(v1::ShortenReason_MAX == static_cast<int>(block::ShortenReason::kMaxTokens));
static_assert(v1::BlockState_MAX == static_cast<int>(block::BlockState::kPending));
static_assert(v1::StoreResult_MAX == static_cast<int>(block::StoreResult::kRefused));

void WriteMatch(const block::MatchAnswer& match, v1::Answer* proto) {
  proto->set_matched_tokens(match.matched_tokens);
  proto->set_restorable_tokens(match.restorable_tokens);
  proto->set_pending_tokens(match.pending_tokens);
  proto->set_kind(static_cast<v1::MatchKind>(match.kind));
  proto->set_match_ended_by(static_cast<v1::EndReason>(match.ended_by));
  proto->set_diverged_sequences(match.diverged_sequences);
  for (const block::Shortening& shortening : match.shortened_by) {
    v1::Shortening* to = proto->add_shortened_by();
    to->set_all_groups(shortening.group == block::kAllGroups);
    if (shortening.group != block::kAllGroups) to->set_group(shortening.group);
    to->set_reason(static_cast<v1::ShortenReason>(shortening.reason));
    to->set_tokens_lost(shortening.tokens_lost);
  }
  proto->set_ram_bytes(match.ram_bytes);
  proto->set_ssd_bytes(match.ssd_bytes);
  proto->set_load_us(match.load_us);
}

block::MatchAnswer ReadMatch(const v1::Answer& proto) {
  block::MatchAnswer match;
  match.matched_tokens = proto.matched_tokens();
  match.restorable_tokens = proto.restorable_tokens();
  match.pending_tokens = proto.pending_tokens();
  match.kind = ExplainingEnum<block::MatchKind>(proto.kind());
  match.ended_by = ExplainingEnum<block::EndReason>(proto.match_ended_by());
  match.diverged_sequences = proto.diverged_sequences();
  for (const v1::Shortening& from : proto.shortened_by()) {
    match.shortened_by.push_back({.group = from.all_groups() ? block::kAllGroups : from.group(),
                                  .reason = ExplainingEnum<block::ShortenReason>(from.reason()),
                                  .tokens_lost = from.tokens_lost()});
  }
  match.ram_bytes = proto.ram_bytes();
  match.ssd_bytes = proto.ssd_bytes();
  match.load_us = proto.load_us();
  return match;
}

absl::Status ReadPages(const v1::GroupPages& proto, uint32_t restorable, uint32_t block_tokens,
                       std::vector<block::LeasedPage>* pages) {
  const uint64_t blocks = (uint64_t{restorable} + block_tokens - 1) / block_tokens;
  const auto rungs = static_cast<uint64_t>(proto.rung_size());
  const auto slots = static_cast<uint64_t>(proto.page_tokens_size());
  if (proto.group() >= block::kMaxGroups || rungs != blocks || slots != blocks) {
    return absl::DataLossError(absl::StrCat("answer: group ", proto.group(), " has ", rungs,
                                            " rungs and ", slots, " page_tokens for ", blocks,
                                            " blocks"));
  }
  uint32_t first = 0;
  for (int i = 0; i < proto.rung_size(); ++i, first += block_tokens) {
    const block::LeasedPage page{.group = proto.group(),
                                 .rung = proto.rung(i),
                                 .first_token = first,
                                 .page_tokens = proto.page_tokens(i),
                                 .tokens = std::min(block_tokens, restorable - first)};
    if (page.rung >= block::kMaxLadder || page.page_tokens < page.tokens ||
        page.page_tokens > block_tokens) {
      return absl::DataLossError(absl::StrCat(
          "answer: page of group ", page.group, " at token ", first, " has rung ", page.rung,
          " and ", page.page_tokens, " slots for ", page.tokens, " tokens"));
    }
    pages->push_back(page);
  }
  return absl::OkStatus();
}

}  // namespace

void ToProto(block::LeaseId lease, const block::MatchAnswer& match,
             const std::vector<block::LeasedPage>& pages, v1::Answer* proto) {
  proto->set_lease(lease.value);
  WriteMatch(match, proto);
  v1::GroupPages* column = nullptr;
  for (const block::LeasedPage& page : pages) {
    if (column == nullptr || column->group() != page.group) {
      column = proto->add_pages();
      column->set_group(page.group);
    }
    column->add_rung(page.rung);
    column->add_page_tokens(page.page_tokens);
  }
}

absl::StatusOr<Answer> FromProto(const v1::Answer& proto, uint32_t block_tokens) {
  Answer answer{.lease = {proto.lease()}, .match = ReadMatch(proto), .pages = {}};
  if (proto.restorable_tokens() > proto.matched_tokens()) {
    return absl::DataLossError(absl::StrCat("answer: ", proto.restorable_tokens(),
                                            " tokens restorable of ", proto.matched_tokens(),
                                            " matched"));
  }
  for (const v1::GroupPages& pages : proto.pages()) {
    PREFIXD_RETURN_IF_ERROR(
        ReadPages(pages, proto.restorable_tokens(), block_tokens, &answer.pages));
  }
  return answer;
}

void ToProto(const block::ReservePlan& plan, v1::ReserveReply* proto) {
  proto->set_reservation(plan.reservation.value);
  for (const block::BlockPlan& block : plan.blocks) {
    v1::BlockPlan* to = proto->add_blocks();
    to->set_first_token(block.first_token);
    to->set_tokens(block.tokens);
    to->set_state(static_cast<v1::BlockState>(block.state));
    to->mutable_rung()->Assign(block.rungs.begin(), block.rungs.end());
  }
}

absl::StatusOr<block::ReservePlan> FromProto(const v1::ReserveReply& proto, uint32_t groups) {
  block::ReservePlan plan{.reservation = {proto.reservation()}, .blocks = {}};
  uint64_t next = proto.blocks().empty() ? 0 : proto.blocks(0).first_token();
  for (const v1::BlockPlan& from : proto.blocks()) {
    block::BlockPlan& block = plan.blocks.emplace_back();
    block.first_token = from.first_token();
    block.tokens = from.tokens();
    block.rungs.assign(from.rung().begin(), from.rung().end());
    const bool known =
        ReadEnum("state", from.state(), block::BlockState::kPending, &block.state).ok();
    if (!known || block.first_token != next || block.tokens == 0 || block.rungs.size() != groups) {
      return absl::DataLossError(
          absl::StrCat("reserve: block at token ", block.first_token, " (expected ", next, ") has ",
                       block.tokens, " tokens, state ", from.state(), ", ", block.rungs.size(),
                       " rungs for ", groups, " groups"));
    }
    next += block.tokens;
  }
  return plan;
}

void ToProto(const block::CommitAnswer& answer, v1::CommitReply* proto) {
  proto->set_stored_tokens(answer.stored_tokens);
  proto->set_duplicate_tokens(answer.duplicate_tokens);
  for (const block::BlockResult& result : answer.blocks) {
    v1::BlockResult* to = proto->add_blocks();
    to->set_first_token(result.first_token);
    to->set_result(static_cast<v1::StoreResult>(result.result));
    to->set_reason(result.reason);
  }
}

block::CommitAnswer FromProto(const v1::CommitReply& proto) {
  block::CommitAnswer answer{.stored_tokens = proto.stored_tokens(),
                             .duplicate_tokens = proto.duplicate_tokens(),
                             .blocks = {}};
  for (const v1::BlockResult& from : proto.blocks()) {
    answer.blocks.push_back({.first_token = from.first_token(),
                             .result = ExplainingEnum<block::StoreResult>(from.result()),
                             .reason = from.reason()});
  }
  return answer;
}

}  // namespace prefixd::wire
