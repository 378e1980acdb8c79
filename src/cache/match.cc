// Match: what is there, changing nothing.
#include "base/status.h"
#include "cache/core.h"
#include "cache/request.h"

namespace prefixd::cache {

void Core::CountMatch(const block::MatchAnswer& answer, size_t requested_tokens) {
  const std::string kind = ToString(answer.kind);
  counters.Add("tokens.requested", requested_tokens);
  counters.Add("tokens.matched", answer.matched_tokens);
  counters.Add("tokens.restorable", answer.restorable_tokens);
  counters.Add("match." + kind);
  counters.Add("tokens.restorable." + kind, answer.restorable_tokens);
  counters.Add(std::string("ended.") + ToString(answer.ended_by));
  for (const block::Shortening& shortening : answer.shortened_by) {
    counters.Add(std::string("shortened.") + ToString(shortening.reason));
    counters.Add(std::string("tokens.lost.") + ToString(shortening.reason), shortening.tokens_lost);
  }
}

absl::Status CheckSequence(const block::SequenceView& sequence) {
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

index::MatchOptions OptionsOf(const Request& request) {
  return {.selection = {.groups = request.groups, .rungs = request.readable},
          .max_tokens = request.max_tokens,
          .causal_content = request.causal_content};
}

absl::StatusOr<block::MatchAnswer> Cache::Match(block::SessionId session, const Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(const SpacePtr space, core_->FindSpace(request.space));
  PREFIXD_RETURN_IF_ERROR(CheckSequence({request.tokens, request.content}));
  PREFIXD_RETURN_IF_ERROR(CheckSelection(*space, request.groups, request.readable));
  block::MatchAnswer answer = core_->index->Match(request.space, {request.tokens, request.content},
                                                  OptionsOf(request), session);
  answer.load_us = core_->load_model.EstimateMicros(answer.ram_bytes, answer.ssd_bytes);
  core_->counters.Add("matches");
  return answer;
}

}  // namespace prefixd::cache
