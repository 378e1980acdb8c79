// Counts what an answer says.
#pragma once
#include <cstddef>
#include <cstdint>

#include "block/answer.h"
#include "cache/counters.h"

namespace prefixd::cache {

void CountMatch(const block::MatchAnswer& answer, size_t requested_tokens, Counters* counters);
void CountShortened(block::ShortenReason reason, uint64_t tokens_lost, Counters* counters);

}  // namespace prefixd::cache
