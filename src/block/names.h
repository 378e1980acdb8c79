// The words for what an answer says, as counters, logs and clients write them.
//
// Pure functions. A value that this version does not know is "unknown".
#pragma once
#include "block/answer.h"

namespace prefixd::block {

const char* NameOf(MatchKind kind);        // "exact", "supersequence", "prefix", "lcp", "none"
const char* NameOf(EndReason reason);      // "request_ended", "diverged", ...
const char* NameOf(ShortenReason reason);  // "evicted", "max_tokens", ...

}  // namespace prefixd::block
