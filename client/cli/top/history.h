// What happened between the samples of a daemon: rates, hit rates and ages over time, for prefixctl
// top.
//
// A value; not for concurrent use. Memory is bounded: points older than kMostPoints samples are
// forgotten, and a point keeps only the spaces that requests asked for in it.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "prefixd/v1/admin.pb.h"

namespace prefixd::cli {

// Tokens of requests: all that were asked for, and what of it was found.
struct TokenFlow {
  uint64_t requested = 0;
  uint64_t matched = 0;
  uint64_t ram = 0, ssd = 0, far = 0;  // that could be restored, by the tier that had them
  uint64_t used = 0;

  uint64_t restorable() const { return ram + ssd + far; }
  TokenFlow& operator+=(const TokenFlow& other);
  bool operator==(const TokenFlow&) const = default;
};

// Bytes that moved.
struct ByteFlow {
  uint64_t ssd_new = 0, ssd_rewritten = 0;  // written to the SSD
  uint64_t ssd_read = 0;
  uint64_t far_read = 0, far_written = 0;
  uint64_t evicted = 0;  // from RAM

  uint64_t ssd_written() const { return ssd_new + ssd_rewritten; }
  ByteFlow& operator+=(const ByteFlow& other);
  bool operator==(const ByteFlow&) const = default;
};

// What happened between two samples, or in several such intervals.
struct Flow {
  double seconds = 0;  // that it took
  TokenFlow tokens;
  ByteFlow bytes;
  uint64_t requests = 0;
  double seconds_saved = 0;
  std::vector<uint64_t> evictions;  // blocks, by the power of two of their idle milliseconds
  std::map<std::string, TokenFlow> spaces;  // by space id; those that were asked for
  bool restarted = false;                   // the daemon began anew in it

  Flow& operator+=(const Flow& other);
};

// What a daemon did since it began, as its reply says. `seconds` is its uptime.
Flow TotalsOf(const v1::GetStatsReply& stats);

class History {
 public:
  static constexpr size_t kMostPoints = 3600;

  // Adds a sample that was taken `at_s`, on a clock that never goes back. The first makes no point.
  // A daemon that started since the sample before counts from 0: all that it says happened since.
  void Add(double at_s, const v1::GetStatsReply& stats);

  // The points, oldest first.
  const std::deque<Flow>& points() const { return points_; }
  // Returns the sum of the newest points that together took at most `seconds`, or of the newest
  // one.
  Flow Last(double seconds) const;

 private:
  std::deque<Flow> points_;
  bool any_ = false;
  double at_s_ = 0;
  uint64_t epoch_ = 0;
  Flow totals_;  // of the sample before
};

// Returns the share of the requested tokens that could be restored, 0..1; -1 if none was requested.
double HitRate(const TokenFlow& tokens);

// Returns the milliseconds that half of the evicted blocks were idle at most, right within a factor
// of two; -1 if none was evicted.
double MedianIdleMs(const std::vector<uint64_t>& evictions);

}  // namespace prefixd::cli
