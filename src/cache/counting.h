// Counts what an answer says, and names kinds and reasons for counters.
#pragma once
#include <cstddef>
#include <cstdint>

#include "block/answer.h"
#include "cache/counters.h"

namespace prefixd::cache {

void CountMatch(const block::MatchAnswer& answer, size_t requested_tokens, Counters* counters);
void CountShortened(block::ShortenReason reason, uint64_t tokens_lost, Counters* counters);

const char* ToString(block::MatchKind kind);
const char* ToString(block::ShortenReason reason);
const char* ToString(block::EndReason reason);

}  // namespace prefixd::cache
