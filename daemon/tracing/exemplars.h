// The traced calls that stand for the times in the latency histograms of the metrics: of each verb
// and bucket, the one that ended last.
#pragma once
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "daemon/tracing/span.h"

namespace prefixd::daemon {

struct Exemplar {
  TraceId trace_id{};
  SpanId span_id{};
  double seconds = 0;  // how long the call took
  double unix_s = 0;   // when it ended, since 1970
};

// Thread-safe. Keeps 2 KiB for each verb that was traced.
class Exemplars {
 public:
  void Note(std::string_view verb, const Exemplar& call) PREFIXD_EXCLUDES(mutex_);
  // Returns the newest call of `verb` that took more than `above_s` and at most `up_to_s`; nullopt:
  // none.
  std::optional<Exemplar> Find(std::string_view verb, double above_s, double up_to_s) const
      PREFIXD_EXCLUDES(mutex_);

 private:
  static constexpr size_t kBuckets = 32;  // powers of two of microseconds; the last has all above

  mutable base::Mutex mutex_;
  std::map<std::string, std::array<std::optional<Exemplar>, kBuckets>, std::less<>> calls_
      PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::daemon
