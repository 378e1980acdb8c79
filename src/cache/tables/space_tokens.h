// Counts what requests ask for and get of one space. Thread-safe, without a lock.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

#include "block/answer.h"

namespace prefixd::cache {

class TokensOfSpace {
 public:
  void CountLookup(uint64_t requested, uint64_t matched, const block::TierTokens& restorable) {
    Add(requested, &requested_);
    Add(matched, &matched_);
    restorable_.Add(restorable);
  }
  void CountUsed(const block::TierTokens& used) { used_.Add(used); }
  block::SpaceTokens Get() const {
    return {.requested = requested_.load(std::memory_order_relaxed),
            .matched = matched_.load(std::memory_order_relaxed),
            .restorable = restorable_.Get(),
            .used = used_.Get()};
  }

 private:
  using Count = std::atomic<uint64_t>;
  static void Add(uint64_t by, Count* to) { to->fetch_add(by, std::memory_order_relaxed); }
  struct Tiers {
    Count ram{0}, ssd{0}, remote{0};
    void Add(const block::TierTokens& tokens) {
      TokensOfSpace::Add(tokens.ram, &ram);
      if (tokens.ssd > 0) TokensOfSpace::Add(tokens.ssd, &ssd);
      if (tokens.remote > 0) TokensOfSpace::Add(tokens.remote, &remote);
    }
    block::TierTokens Get() const { return {ram.load(), ssd.load(), remote.load()}; }
  };

  Count requested_{0}, matched_{0};
  Tiers restorable_, used_;
};

// Splits the first `used` of a lease's tokens by tier: what is not in RAM follows what is, because
// RAM gives up the ends of sequences first.
inline block::TierTokens SplitUsed(uint64_t used, const block::TierTokens& leased) {
  const uint64_t ram = std::min(used, leased.ram);
  const uint64_t ssd = std::min(used - ram, leased.ssd);
  return {.ram = ram, .ssd = ssd, .remote = used - ram - ssd};
}

}  // namespace prefixd::cache
