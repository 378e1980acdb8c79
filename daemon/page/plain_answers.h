// What people ask of a cache, answered in plain words: is it hitting, do evictions cost hits, is a
// clear safe, what survives, what is wrong.
//
// Pure functions.
#pragma once
#include <string>
#include <vector>

#include "block/answer.h"
#include "cache/cache.h"
#include "daemon/page/history.h"

namespace prefixd::daemon {

struct PlainAnswer {
  std::string question, answer;
  std::string level;  // "good", "note" or "warning"
};

// `before`: what was counted some minutes ago (PageHistory::Before).
std::vector<PlainAnswer> PlainAnswers(const block::Stats& stats, const cache::ArenaPlace& arena,
                                      const PagePoint& before);

// Returns what is wrong now, a sentence each.
std::vector<std::string> Troubles(const block::Stats& stats, const cache::ArenaPlace& arena);

// Returns the milliseconds that half of the blocks were at most, right within a factor of two; -1
// if there was none.
double MedianMs(const block::AgeHistogram& ages);

// Returns "1,234,567"; "1 token", "2 tokens"; "450 ms", "12 s", "3 min", "5 h", "2 days".
std::string CountWords(uint64_t count);
std::string CountOf(uint64_t count, const char* what);
std::string TimeWords(double ms);
// Returns "81 %" or "0.4 %"; "0 %" of nothing.
std::string ShareWords(uint64_t part, uint64_t whole);

}  // namespace prefixd::daemon
