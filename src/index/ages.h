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

  // Counts blocks that a request reads, or that RAM gives up, at one time.
  class Counting {
   public:
    // `stamp` and `serial` are the latest that were drawn.
    Counting(Ages* ages, int64_t stamp, uint64_t serial)
        : ages_(ages), now_us_(ages->clock_->MonotonicMicros()), stamp_(stamp), serial_(serial) {}
    // Before the block is stamped anew.
    void Read(const Node& node) const {
      Add(node, &ages_->counted_.reuse_gap, &ages_->counted_.age_at_hit);
    }
    void GivenUp(const Node& node) const {
      Add(node, &ages_->counted_.idle_at_eviction, &ages_->counted_.lifetime_at_eviction);
    }

   private:
    void Add(const Node& node, block::AgeHistogram* since_use,
             block::AgeHistogram* since_birth) const;

    Ages* const ages_;
    const int64_t now_us_, stamp_;
    const uint64_t serial_;
  };

  const block::BlockAges& counted() const { return counted_; }

 private:
  const base::Clock* const clock_;
  Timeline uses_, births_;
  block::BlockAges counted_;
};

}  // namespace prefixd::index
