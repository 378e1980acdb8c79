#include "cache/verbs/request.h"

#include "absl/strings/str_cat.h"

namespace prefixd::cache {

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

index::MatchOptions OptionsOf(const Request& request, uint32_t slot) {
  return {.selection = {.groups = request.groups, .rungs = request.readable},
          .slot = slot,
          .max_tokens = request.max_tokens,
          .causal_content = request.causal_content,
          .table = request.table && slot != block::kNoSlot};
}

}  // namespace prefixd::cache
