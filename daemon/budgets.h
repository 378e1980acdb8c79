// How much RAM and disk the daemon takes: the settings applied to this machine.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "daemon/config.h"

namespace prefixd::daemon {

struct Machine {
  uint64_t available_memory = 0;  // MemAvailable, or what the cgroup leaves, the smaller
  uint64_t disk_bytes = 0;        // of the filesystem that holds the directory
  uint64_t disk_free = 0;         // for this user, what the SSD tier already holds counted as free
};
// Reads /proc and the cgroup (v2 and v1); of the disk: the nearest ancestor of `directory` that
// exists.
absl::StatusOr<Machine> MeasureMachine(const std::string& directory);

struct Budgets {
  uint64_t ram_bytes = 0;
  uint64_t ssd_bytes = 0;     // 0 = off
  std::string ssd_off_why{};  // when it is off
  // The disk is below the floor: the tier is opened once it has so much free beside what the tier
  // has there. Why; empty = it is not.
  std::string ssd_waits_why{};
  std::string ssd_short_of{};   // when the disk has not that much: what it has
  uint64_t ssd_write_rate = 0;  // bytes a second; 0 = no limit
};
// Pure. The SSD tier waits below the floor even when a size was asked for: a full disk hurts more
// than a smaller cache.
Budgets PlanBudgets(const Config& config, const Machine& machine);

}  // namespace prefixd::daemon
