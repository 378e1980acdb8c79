// The lines that a request leaves in the log: what people look for when a hit was expected. Token
// ids never appear.
//
// Pure functions.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cache/cache.h"

namespace prefixd::daemon {

// "acquire HIT kind=LCP request_id=7 space=1a2b prompt=44 matched=17 cached=17 ended_by=diverged
// pages=2 ram=1.0 MiB ssd=0 B time=210us", or MISS with why. `space` is the handle.
std::string AcquireLine(const cache::Request& request, const cache::Acquired& acquired,
                        uint64_t time_us);
// The time of a lookup that is its own: with what other hosts were asked, `call_us` came after
// that, and without what another worker was waited for.
uint64_t OwnMicros(const cache::Request& request, const cache::Acquired& acquired,
                   uint64_t call_us);
// The same line with where the time went: "slow: acquire ... time=1204310us waited=0us remote=0us
// match=210us room=1204100us". `waited`: for what another worker announced; `room`: making room for
// pages on SSD and starting their reads.
std::string SlowLine(const cache::Request& request, const cache::Acquired& acquired,
                     uint64_t time_us);
// "commit tokens=44 stored=27 duplicate=17 entries=3 ram=31.6 MiB time=80us"; entries and ram are
// those of the whole cache.
std::string CommitLine(const cache::CommitRequest& request, const block::CommitAnswer& answer,
                       const cache::Cache::Holdings& held, uint64_t time_us);
// The counter of pages that an earlier daemon left in the arena file.
inline constexpr char kAdoptedPages[] = "adopted.pages";
// Returns 0 for a counter that was never counted.
uint64_t CounterOf(const block::Stats& stats, const std::string& name);
// The periodic line: what the cache holds and did since start.
std::string StatsLine(const block::Stats& stats);

}  // namespace prefixd::daemon
