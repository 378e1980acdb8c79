#include "wire/answer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "block/layer_group.h"
#include "wire/fields.h"
#include "wire/limits.h"
#include "wire/pages.h"

namespace prefixd::wire {
namespace {

static_assert(v1::MatchKind_MAX == static_cast<int>(block::MatchKind::kNone));
static_assert(v1::EndReason_MAX == static_cast<int>(block::EndReason::kIndexLoading));
static_assert(v1::ShortenReason_MAX == static_cast<int>(block::ShortenReason::kCommonLength));
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
  proto->set_remote_bytes(match.remote_bytes);
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
  match.remote_bytes = proto.remote_bytes();
  match.load_us = proto.load_us();
  return match;
}

}  // namespace

void ToProto(block::LeaseId lease, const block::MatchAnswer& match,
             const std::vector<block::LeasedPage>& pages, v1::Answer* proto) {
  proto->set_lease(lease.value);
  WriteMatch(match, proto);
  WriteColumns(pages, proto->mutable_pages());
}

absl::StatusOr<Answer> FromProto(const v1::Answer& proto, uint32_t block_tokens,
                                 std::span<const block::LayerKind> kinds) {
  Answer answer{.lease = {proto.lease()}, .match = ReadMatch(proto), .pages = {}};
  if (proto.restorable_tokens() > proto.matched_tokens()) {
    return absl::DataLossError(absl::StrCat("answer: ", proto.restorable_tokens(),
                                            " tokens restorable of ", proto.matched_tokens(),
                                            " matched"));
  }
  const Columns columns{
      .block_tokens = block_tokens, .tokens = proto.restorable_tokens(), .kinds = kinds};
  google::protobuf::RepeatedPtrField<v1::GroupPages> expanded;
  if (proto.has_table()) PREFIXD_RETURN_IF_ERROR(ExpandTable(proto.table(), columns, &expanded));
  for (const v1::GroupPages& pages : proto.has_table() ? expanded : proto.pages()) {
    PREFIXD_RETURN_IF_ERROR(ReadColumns(pages, columns, &answer.pages));
  }
  return answer;
}

void ToProto(const block::ReservePlan& plan, v1::ReserveReply* proto) {
  proto->set_reservation(plan.reservation.value);
  proto->mutable_blocks()->Reserve(static_cast<int>(plan.blocks.size()));
  for (const block::BlockPlan& block : plan.blocks) {
    v1::BlockPlan* to = proto->add_blocks();
    to->set_first_token(block.first_token);
    to->set_tokens(block.tokens);
    to->set_state(static_cast<v1::BlockState>(block.state));
    to->mutable_rung()->Assign(block.rungs.begin(), block.rungs.end());
    to->mutable_seed()->Assign(block.seeds.begin(), block.seeds.end());
  }
  proto->mutable_snapshot_tokens()->Assign(plan.snapshot_tokens.begin(),
                                           plan.snapshot_tokens.end());
}

absl::StatusOr<block::ReservePlan> FromProto(const v1::ReserveReply& proto, uint32_t groups) {
  block::ReservePlan plan{.reservation = {proto.reservation()}, .blocks = {}};
  uint64_t next = proto.blocks().empty() ? 0 : proto.blocks(0).first_token();
  for (const v1::BlockPlan& from : proto.blocks()) {
    block::BlockPlan& block = plan.blocks.emplace_back();
    block.first_token = from.first_token();
    block.tokens = from.tokens();
    block.rungs.assign(from.rung().begin(), from.rung().end());
    block.seeds.assign(from.seed().begin(), from.seed().end());
    const bool known =
        ReadEnum("state", from.state(), block::BlockState::kPending, &block.state).ok();
    if (!known || block.first_token != next || block.tokens == 0 || block.rungs.size() != groups ||
        (!block.seeds.empty() && block.seeds.size() != groups)) {
      return absl::DataLossError(
          absl::StrCat("reserve: block at token ", block.first_token, " (expected ", next, ") has ",
                       block.tokens, " tokens, state ", from.state(), ", ", block.rungs.size(),
                       " rungs and ", block.seeds.size(), " seeds for ", groups, " groups"));
    }
    next += block.tokens;
  }
  uint32_t before = 0;
  for (const uint32_t position : proto.snapshot_tokens()) {
    if (position <= before || position > next ||
        plan.snapshot_tokens.size() == block::kMaxSnapshots) {
      return absl::DataLossError(absl::StrCat("reserve: a snapshot at token ", position, " after ",
                                              before, ", of ", next, " tokens and at most ",
                                              block::kMaxSnapshots));
    }
    plan.snapshot_tokens.push_back(before = position);
  }
  return plan;
}

void ToProto(const block::CommitAnswer& answer, v1::CommitReply* proto) {
  proto->set_stored_tokens(answer.stored_tokens);
  proto->set_duplicate_tokens(answer.duplicate_tokens);
  proto->mutable_blocks()->Reserve(static_cast<int>(answer.blocks.size()));
  for (const block::BlockResult& result : answer.blocks) {
    v1::BlockResult* to = proto->add_blocks();
    to->set_first_token(result.first_token);
    to->set_result(static_cast<v1::StoreResult>(result.result));
    if (!result.reason.empty()) to->set_reason(result.reason);
  }
  proto->set_lease(answer.lease.value);
  proto->set_first_block(answer.first_block);
  proto->set_durability(static_cast<v1::Durability>(answer.durability));
  WriteColumns(answer.pages, proto->mutable_pages());
}

block::CommitAnswer FromProto(const v1::CommitReply& proto) {
  block::CommitAnswer answer{.stored_tokens = proto.stored_tokens(),
                             .duplicate_tokens = proto.duplicate_tokens(),
                             .blocks = {},
                             .lease = {},
                             .pages = {},
                             .durability = ExplainingEnum<block::Durability>(proto.durability())};
  for (const v1::BlockResult& from : proto.blocks()) {
    answer.blocks.push_back({.first_token = from.first_token(),
                             .result = ExplainingEnum<block::StoreResult>(from.result()),
                             .reason = from.reason()});
  }
  return answer;
}

absl::StatusOr<block::CommitAnswer> FromProto(const v1::CommitReply& proto, uint32_t block_tokens,
                                              std::span<const block::LayerKind> kinds) {
  block::CommitAnswer answer = FromProto(proto);
  answer.lease = {proto.lease()};
  answer.first_block = proto.first_block();
  // The last page says where the published tokens end: it has a slot for each of its tokens. A
  // sliding group may lack it.
  uint32_t last = 0;
  int blocks_told = 0;
  for (const v1::GroupPages& pages : proto.pages()) {
    blocks_told = std::max(blocks_told, pages.page_tokens_size());
    if (!pages.page_tokens().empty()) last = std::max(last, *pages.page_tokens().rbegin());
  }
  if (proto.pages().empty()) return answer;
  const uint64_t blocks = uint64_t{proto.first_block()} + static_cast<uint64_t>(blocks_told);
  const uint64_t tokens = blocks == 0 ? 0 : (blocks - 1) * block_tokens + last;
  if (last == 0 || last > block_tokens || tokens > kMaxTokens) {
    return absl::DataLossError(absl::StrCat("commit: group ", proto.pages(0).group(),
                                            " ends with a page of ", last, " slots at token ",
                                            tokens));
  }
  for (const v1::GroupPages& pages : proto.pages()) {
    PREFIXD_RETURN_IF_ERROR(ReadColumns(pages,
                                        {.block_tokens = block_tokens,
                                         .first_block = proto.first_block(),
                                         .tokens = static_cast<uint32_t>(tokens),
                                         .kinds = kinds},
                                        &answer.pages));
  }
  return answer;
}

void ToProto(const LeaseReady& ready, v1::LeaseReady* proto) {
  proto->set_lease(ready.lease.value);
  proto->set_group(ready.group);
  proto->mutable_first_token()->Reserve(static_cast<int>(ready.pages.size()));
  proto->mutable_offset()->Reserve(static_cast<int>(ready.pages.size()));
  for (const block::LeasedPage& page : ready.pages) {
    proto->add_first_token(page.first_token);
    proto->add_offset(page.offset);
  }
}

absl::StatusOr<LeaseReady> FromProto(const v1::LeaseReady& proto) {
  if (proto.group() >= block::kMaxGroups || proto.first_token_size() != proto.offset_size()) {
    return absl::DataLossError(absl::StrCat("ready: group ", proto.group(), " has columns of ",
                                            proto.first_token_size(), " first_token and ",
                                            proto.offset_size(), " offset"));
  }
  LeaseReady ready{.lease = {proto.lease()}, .group = proto.group(), .pages = {}};
  ready.pages.reserve(static_cast<size_t>(proto.offset_size()));
  for (int i = 0; i < proto.offset_size(); ++i) {
    ready.pages.push_back({.group = proto.group(),
                           .first_token = proto.first_token(i),
                           .in_ram = true,
                           .offset = proto.offset(i)});
  }
  return ready;
}

void ToProto(const LeaseFailed& failed, v1::LeaseFailed* proto) {
  proto->set_lease(failed.lease.value);
  proto->set_group(failed.group);
  proto->set_usable_tokens(failed.usable_tokens);
  proto->set_reason(static_cast<v1::ShortenReason>(failed.reason));
}

LeaseFailed FromProto(const v1::LeaseFailed& proto) {
  return {.lease = {proto.lease()},
          .group = proto.group(),
          .usable_tokens = proto.usable_tokens(),
          .reason = ExplainingEnum<block::ShortenReason>(proto.reason())};
}

}  // namespace prefixd::wire
