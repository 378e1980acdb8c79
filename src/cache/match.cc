// Match: what is there, changing nothing.
#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {

void Core::CountMatch(const block::MatchAnswer& answer, size_t requested_tokens) {
  const std::string kind = ToString(answer.kind);
  counters.AddAll({{"tokens.requested", requested_tokens},
                   {"tokens.matched", answer.matched_tokens},
                   {"tokens.restorable", answer.restorable_tokens},
                   {"match." + kind, 1},
                   {"tokens.restorable." + kind, answer.restorable_tokens},
                   {std::string("ended.") + ToString(answer.ended_by), 1}});
  for (const block::Shortening& shortening : answer.shortened_by) {
    CountShortened(shortening.reason, shortening.tokens_lost);
  }
}

void Core::CountShortened(block::ShortenReason reason, uint64_t tokens_lost) {
  const std::string name = ToString(reason);
  counters.AddAll({{"shortened." + name, 1}, {"tokens.lost." + name, tokens_lost}});
}

absl::Status CheckSequence(const block::SequenceView& sequence) {
  static_assert(kMaxTokens <= index::kMaxSequenceTokens);
  if (sequence.tokens.empty() || sequence.tokens.size() > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("request: ", sequence.tokens.size(),
                                                   " tokens, a request has 1 to ", kMaxTokens));
  }
  return block::ValidateContent(sequence);
}

absl::Status CheckSelection(const SpaceInfo& space, const std::vector<uint32_t>& groups,
                            const std::vector<uint64_t>& rungs) {
  const size_t count = space.identity.groups.size();
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] >= count || (i > 0 && groups[i] <= groups[i - 1])) {
      return absl::InvalidArgumentError(absl::StrCat("request: groups must ascend and be below ",
                                                     count, ", entry ", i, " is ", groups[i]));
    }
  }
  if (!rungs.empty() && rungs.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: ", rungs.size(), " rung masks, the space has ", count, " groups"));
  }
  return absl::OkStatus();
}

index::MatchOptions OptionsOf(const Request& request, uint32_t slot) {
  return {.selection = {.groups = request.groups, .rungs = request.readable},
          .slot = slot,
          .max_tokens = request.max_tokens,
          .causal_content = request.causal_content,
          .table = request.table && slot != block::kNoSlot};
}

absl::StatusOr<block::MatchAnswer> Cache::Match(block::SessionId id, const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SessionPtr session, core_->FindSession(id, "match"));
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(*session, request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  core_->KeepLimits();
  block::MatchAnswer answer = core_->index->Match(request.space, {request.tokens, request.content},
                                                  OptionsOf(request, block::kNoSlot), id);
  answer.load_us = core_->load_model.EstimateMicros(answer.ram_bytes, answer.ssd_bytes);
  core_->counters.Add("matches");
  return answer;
}

}  // namespace prefixd::cache
