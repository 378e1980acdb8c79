// Counts how old blocks are when they are read and when RAM gives them up.
//
// Internal to index/. Not thread-safe: the index's mutex guards it.
#pragma once
#include <cstdint>

#include "base/clock.h"
#include "block/answer.h"
#include "index/node.h"
#include "index/timeline.h"

namespace prefixd::index {

class Ages {
 public:
  explicit Ages(const base::Clock* clock) : clock_(clock) {}

  // A stamp, or a serial, is drawn. A walk that draws many stamps notes the first.
  void NoteStamp(int64_t stamp) {
    uses_.Note(static_cast<uint64_t>(stamp), clock_->MonotonicMicros());
  }
  void NoteSerial(uint64_t serial) { births_.Note(serial, clock_->MonotonicMicros()); }
  // Stamps from before say nothing of a time: an earlier daemon drew them, or they were drawn anew.
  void ForgetStamps() { uses_.Restart(); }

  // Counts blocks that a request reads, or that RAM gives up, at one time: many of them in a few
  // steps, because those that were stored or used together have one age.
  class Counting {
   public:
    // `stamp` and `serial` are the latest that were drawn.
    Counting(const Ages& ages, int64_t stamp, uint64_t serial, block::AgeHistogram* since_use,
             block::AgeHistogram* since_birth)
        : now_us_(ages.clock_->MonotonicMicros()),
          use_{&ages.uses_, static_cast<uint64_t>(stamp), since_use},
          birth_{&ages.births_, serial, since_birth} {}
    ~Counting() {
      Flush(use_);
      Flush(birth_);
    }
    Counting(const Counting&) = delete;
    Counting& operator=(const Counting&) = delete;

    // `stamp`: the block's before it is stamped anew. Counts full blocks only.
    void Add(const Node& node, int64_t stamp) {
      const uint64_t serial = node.serial();
      if (serial == 0) return;
      Add(static_cast<uint64_t>(stamp), use_);
      Add(serial, birth_);
    }

   private:
    struct Run {
      const Timeline* timeline;
      uint64_t latest;
      block::AgeHistogram* histogram;
      Timeline::Interval numbers{};  // of blocks that are not in the histogram yet
      uint64_t blocks = 0;
    };
    void Add(uint64_t number, Run& run) {
      if (!run.numbers.has(number)) Begin(number, run);
      run.blocks += run.numbers.has(number) ? 1 : 0;
    }
    void Begin(uint64_t number, Run& run);
    void Flush(Run& run);

    const int64_t now_us_;
    Run use_, birth_;
  };
  Counting CountRead(int64_t stamp, uint64_t serial) {
    return Counting(*this, stamp, serial, &counted_.reuse_gap, &counted_.age_at_hit);
  }
  Counting CountGivenUp(int64_t stamp, uint64_t serial) {
    return Counting(*this, stamp, serial, &counted_.idle_at_eviction,
                    &counted_.lifetime_at_eviction);
  }

  const block::BlockAges& counted() const { return counted_; }

 private:
  const base::Clock* const clock_;
  Timeline uses_, births_;
  block::BlockAges counted_;
};

}  // namespace prefixd::index
