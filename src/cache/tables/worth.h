// What a hit was worth: the seconds that its worker would have spent on computing the tokens again.
//
// Thread-safe. Numbers come from workers: none of them can make the sum worthless.
#pragma once
#include <cstdint>

#include "absl/container/flat_hash_map.h"

#include "base/mutex.h"
#include "block/ids.h"

namespace prefixd::cache {

// Tokens per second that a worker told, at least 0.1; 0 when it is no rate of a worker: not finite,
// not positive, or above 10^7.
double BelievableRate(double tokens_per_s);

class Worth {
 public:
  struct Release {
    block::SpaceHandle space;   // none: it is not known
    uint32_t used_tokens = 0;   // at most those of the lease
    double told_rate = 0;       // with the release
    double looked_up_rate = 0;  // by the lease's last lookup
    uint64_t load_us = 0;       // that the worker waited for pages, as it told
    uint64_t lease_age_us = 0;  // it cannot have waited much longer
  };
  // Seconds saved; negative where loading took longer than computing. 0 where no rate is known:
  // that of the release, of the lookup, or of the last release in this space that told one.
  double Seconds(const Release& release) PREFIXD_EXCLUDES(mutex_);
  void Forget(block::SpaceHandle space) PREFIXD_EXCLUDES(mutex_);

 private:
  double RateOf(const Release& release) PREFIXD_EXCLUDES(mutex_);

  base::Mutex mutex_;
  absl::flat_hash_map<block::SpaceHandle, double> rates_ PREFIXD_GUARDED_BY(mutex_);  // last told
};

}  // namespace prefixd::cache
