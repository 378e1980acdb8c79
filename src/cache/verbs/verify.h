// Verify: reads what is stored and drops what is bad, slab by slab and segment by segment.
#pragma once
#include <cstdint>

#include "base/mutex.h"
#include "cache/cache.h"
#include "cache/context.h"
#include "cache/patience.h"
#include "cache/store/dropper.h"
#include "cache/store/segments.h"

namespace prefixd::cache {

// Thread-safe: one step at a time, others wait.
class Verifier {
 public:
  Verifier(Context* context, Segments* segments, Dropper* dropper)
      : context_(context), segments_(segments), dropper_(dropper) {}

  // As Cache::Verify.
  VerifyProgress Step(uint64_t cursor, uint64_t bytes_per_s, const Patience& patience)
      PREFIXD_EXCLUDES(mutex_);

 private:
  class Pace;  // waits as the rate limit asks
  void Verify(uint64_t cursor, Pace& pace, VerifyProgress* progress);
  void VerifySlab(uint64_t begin, uint64_t end, Pace& pace, VerifyProgress* progress);
  void VerifySegment(const ssd::SegmentInfo& segment, Pace& pace, VerifyProgress* progress)
      PREFIXD_EXCLUDES(segments_->mutex);
  bool IsBadInRam(const index::PageInfo& page) const;

  Context* const context_;
  Segments* const segments_;
  Dropper* const dropper_;
  base::Mutex mutex_;  // held while a step reads
};

}  // namespace prefixd::cache
