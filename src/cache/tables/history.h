// The last answers of Acquire: what was requested, what was there, why not more, where the time
// went. It holds no token ids.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "block/answer.h"
#include "index/prefix_index.h"

namespace prefixd::cache {

// Thread-safe.
class History {
 public:
  static constexpr size_t kMostAnswers = 4096;

  explicit History(uint64_t most_bytes) : most_bytes_(most_bytes) {}

  // Numbers answers that came without an id.
  uint64_t NextNumber() { return next_number_.fetch_add(1); }
  // At most kMostAnswers of at most `most_bytes` are kept; the oldest go first. `last_full`: what
  // was leased ends there (index::Acquired). `at_us` is when. Returns what Learn names it by; never
  // 0.
  uint64_t Add(block::PastAnswer answer, const index::BlockRef& last_full, int64_t at_us)
      PREFIXD_EXCLUDES(mutex_);
  // What the worker told when it was done. Nothing, when the answer is forgotten.
  void Learn(uint64_t serial, uint32_t used_tokens, uint64_t load_us, uint64_t first_token_us)
      PREFIXD_EXCLUDES(mutex_);
  // Newest first.
  block::PastAnswers Find(const block::WhyQuery& query, int64_t now_us) const
      PREFIXD_EXCLUDES(mutex_);
  // What an answer read: whole blocks up to `last_full`, of them those that end before `tokens`.
  struct Read {
    block::SpaceId space{};
    index::BlockRef last_full{};
    uint32_t tokens = 0;
    double age_s = 0;
  };
  // Returns the answers that read a whole block, newest first; of `space` alone, if it is not null.
  std::vector<Read> Reads(const block::SpaceId* space, int64_t now_us) const
      PREFIXD_EXCLUDES(mutex_);
  uint64_t MemoryBytes() const PREFIXD_EXCLUDES(mutex_);

 private:
  struct Entry {
    int64_t at_us = 0;
    uint64_t bytes = 0;
    block::PastAnswer answer;
    index::BlockRef last_full{};
  };

  const uint64_t most_bytes_;
  std::atomic<uint64_t> next_number_{1};
  mutable base::Mutex mutex_;
  std::deque<Entry> entries_ PREFIXD_GUARDED_BY(mutex_);  // oldest first, of consecutive serials
  uint64_t first_serial_ PREFIXD_GUARDED_BY(mutex_) = 1;
  uint64_t bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
