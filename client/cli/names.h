// Words for the enums of the wire. The counters of `stats` use the same words.
//
// Pure functions. Values that this version does not know become "unknown (17)".
#pragma once
#include <string>

#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::cli {

std::string NameOf(v1::MatchKind kind);        // "exact", "supersequence", "prefix", "lcp", "none"
std::string NameOf(v1::EndReason reason);      // "request_ended", "diverged", ...
std::string NameOf(v1::ShortenReason reason);  // "evicted", "max_tokens", ...
std::string NameOf(v1::LayerKind kind);        // "full", "sliding", "state"

// Returns the 16 hexadecimal digits of a session, lease or pin, as the log shows them.
std::string HexId(uint64_t id);

// HexId returns the 64 hexadecimal digits of a space id, or those of any other bytes. ShortId
// returns the first 12, which tables show.
std::string HexId(const std::string& space_id);
std::string ShortId(const std::string& space_id);

}  // namespace prefixd::cli
