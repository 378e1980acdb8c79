// Killing prefixd, and killing its workers, again and again under load. The figures of both; what
// they must be is the tests' to say.
//
// Seeded: the same seed kills after the same amounts of work. Every wait has a deadline, after
// which the run ends with an error instead of hanging.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::bench {

struct CrashOptions {
  std::string directory;  // existing: socket, log, SSD tier
  std::string arena;      // path of the arena file, on a tmpfs; left for the caller to remove
  uint64_t kills = 50;
  uint32_t workers = 4;
  uint64_t seed = 1;
};

// What the workers saw.
struct CrashWork {
  uint64_t operations = 0, requested_tokens = 0, cached_tokens = 0, in_place_tokens = 0;
  uint64_t committed_tokens = 0, refused = 0, outlived = 0;
  uint64_t wrong = 0;  // comparisons of bytes with their generator that failed
  std::string first_wrong;
};

// What stands in the daemon when every worker is gone: all should be 0.
struct Leaks {
  uint64_t sessions = 0, leases = 0, leased_bytes = 0, reservations = 0, staging_bytes = 0;
  uint64_t extent_bytes = 0;  // allocated in the arena beyond the sum over all spaces' pages
  uint64_t total() const {
    return sessions + leases + leased_bytes + reservations + staging_bytes + extent_bytes;
  }
};
std::string ToText(const Leaks& leaks);

struct CrashReport {
  uint64_t kills = 0;
  uint64_t killed_while_starting = 0;
  CrashWork work;
  Leaks leaks;
  // A last kill with nobody at work: what was restorable before, what came back and was right.
  uint64_t resident_tokens = 0, hit_tokens = 0;
  uint64_t ram_bytes = 0, ram_bytes_after = 0;  // in RAM, before and after
  double slowest_start_us = 0;                  // exec to listening
};
absl::StatusOr<CrashReport> RunCrashLoop(const CrashOptions& options);

struct DeathReport {
  uint64_t kills = 0;
  CrashWork work;
  Leaks leaks;
  double slowest_cleanup_us = 0;  // last worker's end to nothing held, over the checks between
};
// One daemon; its workers are killed `kills` times in all.
absl::StatusOr<DeathReport> RunWorkerDeaths(const CrashOptions& options);

}  // namespace prefixd::bench
