// Which rung of its ladder a writer is told to write new blocks in: the finest that it can, or,
// while room is short, the next coarser one. Nothing that is stored is ever quantized again, and a
// writer that can write one rung only is never told another.
//
// Two rules, each with a place where it begins and a lower one where it ends, so that the advice
// does not flap: the share of the requested tokens that were here shortly before and had been given
// up (more than 5 %, until below 2 %), and, where asked for, how full the arena is (above a share,
// until a tenth below it).
#pragma once
#include <cstdint>

#include "base/mutex.h"

namespace prefixd::cache {

struct AdviceRules {
  bool on_misses = true;
  double coarser_above = 0;                         // of the arena, 0 to 1; 0: no such rule
  uint64_t window_tokens = uint64_t{1} << 20;       // of the misses: what lies further back fades
  uint64_t judged_from_tokens = uint64_t{1} << 14;  // with fewer requested, misses say nothing
};

// Thread-safe.
class FormatAdvice {
 public:
  explicit FormatAdvice(const AdviceRules& rules) : rules_(rules) {}

  const AdviceRules& rules() const { return rules_; }
  // Of a request: its tokens, and how many of them were here once and are given up.
  void CountRequest(uint64_t tokens, uint64_t given_up) PREFIXD_EXCLUDES(mutex_);
  // Steps that new blocks are coarser than the finest rung: 0 or 1. `used` is the share of the
  // arena in extents; it is looked at where that rule is on.
  uint32_t Steps(double used) PREFIXD_EXCLUDES(mutex_);

  struct State {
    bool full = false, missing = false;  // which rule holds
    uint64_t times = 0;                  // the advice became coarser
    uint64_t missed_permille = 0;        // of the window's requested tokens
  };
  State state() const PREFIXD_EXCLUDES(mutex_);

 private:
  // A rule begins or ends.
  void Set(bool* rule, bool holds) PREFIXD_REQUIRES(mutex_);

  const AdviceRules rules_;
  mutable base::Mutex mutex_;
  State state_ PREFIXD_GUARDED_BY(mutex_);
  double requested_ PREFIXD_GUARDED_BY(mutex_) = 0, given_up_ PREFIXD_GUARDED_BY(mutex_) = 0;
};

}  // namespace prefixd::cache
