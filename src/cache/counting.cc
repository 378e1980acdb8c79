#include "cache/counting.h"

#include <string>

namespace prefixd::cache {

const char* ToString(block::MatchKind kind) {
  switch (kind) {
    case block::MatchKind::kExact:
      return "exact";
    case block::MatchKind::kSupersequence:
      return "supersequence";
    case block::MatchKind::kPrefix:
      return "prefix";
    case block::MatchKind::kLcp:
      return "lcp";
    case block::MatchKind::kNone:
      break;
  }
  return "none";
}

const char* ToString(block::ShortenReason reason) {
  static constexpr const char* kNames[] = {
      "unspecified",   "evicted",    "no_state_snapshot",   "window_gone",
      "corrupt",       "format",     "atomic_content",      "ram_full",
      "lease_quota",   "deadline",   "slower_than_prefill", "io_error",
      "index_loading", "max_tokens", "common_length"};
  return kNames[static_cast<size_t>(reason)];
}

const char* ToString(block::EndReason reason) {
  static constexpr const char* kNames[] = {"unspecified", "request_ended", "diverged",
                                           "evicted",     "never_stored",  "index_loading"};
  return kNames[static_cast<size_t>(reason)];
}

void CountMatch(const block::MatchAnswer& answer, size_t requested_tokens, Counters* counters) {
  const std::string kind = ToString(answer.kind);
  counters->AddAll({{"tokens.requested", requested_tokens},
                    {"tokens.matched", answer.matched_tokens},
                    {"tokens.restorable", answer.restorable_tokens},
                    {"match." + kind, 1},
                    {"tokens.restorable." + kind, answer.restorable_tokens},
                    {std::string("ended.") + ToString(answer.ended_by), 1}});
  for (const block::Shortening& shortening : answer.shortened_by) {
    CountShortened(shortening.reason, shortening.tokens_lost, counters);
  }
}

void CountShortened(block::ShortenReason reason, uint64_t tokens_lost, Counters* counters) {
  const std::string name = ToString(reason);
  counters->AddAll({{"shortened." + name, 1}, {"tokens.lost." + name, tokens_lost}});
}

}  // namespace prefixd::cache
