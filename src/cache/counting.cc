#include "cache/counting.h"

#include <string>

#include "block/names.h"

namespace prefixd::cache {

void CountMatch(const block::MatchAnswer& answer, size_t requested_tokens, Counters* counters) {
  const std::string kind = block::NameOf(answer.kind);
  counters->AddAll({{"tokens.requested", requested_tokens},
                    {"tokens.matched", answer.matched_tokens},
                    {"tokens.restorable", answer.restorable_tokens},
                    {"match." + kind, 1},
                    {"tokens.restorable." + kind, answer.restorable_tokens},
                    {std::string("ended.") + block::NameOf(answer.ended_by), 1}});
  for (const block::Shortening& shortening : answer.shortened_by) {
    CountShortened(shortening.reason, shortening.tokens_lost, counters);
  }
}

void CountShortened(block::ShortenReason reason, uint64_t tokens_lost, Counters* counters) {
  const std::string name = block::NameOf(reason);
  counters->AddAll({{"shortened." + name, 1}, {"tokens.lost." + name, tokens_lost}});
}

}  // namespace prefixd::cache
