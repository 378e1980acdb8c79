// Words for the enums of the wire: the counters of `stats` use the same ones.
//
// Pure functions. Values that this version does not know come out as "unknown (17)".
#pragma once
#include <string>

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::cli {

std::string NameOf(v1::MatchKind kind);        // "exact", "supersequence", "prefix", "lcp", "none"
std::string NameOf(v1::EndReason reason);      // "request_ended", "diverged", ...
std::string NameOf(v1::ShortenReason reason);  // "evicted", "max_tokens", ...
std::string NameOf(v1::LayerKind kind);        // "full", "sliding", "state"

// 16 hexadecimal digits of a session or lease, as the log shows them.
std::string HexId(uint64_t id);

// 64 hexadecimal digits of a space id, and the first 12 that tables show.
std::string HexId(const std::string& space_id);
std::string ShortId(const std::string& space_id);

}  // namespace prefixd::cli
