// How much RAM and disk the daemon takes: the settings applied to this machine.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "daemon/config.h"

namespace prefixd::daemon {

struct Machine {
  uint64_t available_memory = 0;  // the smaller of MemAvailable and what the cgroups leave
  uint64_t disk_bytes = 0;        // size of the filesystem that holds the directory
  uint64_t disk_free = 0;         // for this user; counts what the SSD tier holds as free
};
// Asks the system (os/machine.h), and measures the disk of `directory` or of its nearest
// existing ancestor. FailedPrecondition if the disk cannot be measured.
absl::StatusOr<Machine> MeasureMachine(const std::string& directory);

struct Budgets {
  uint64_t ram_bytes = 0;
  uint64_t ssd_bytes = 0;     // 0 = off
  std::string ssd_off_why{};  // why it is off
  // Why the tier waits: the disk is below the floor. It is opened once the disk has the floor free,
  // what the tier holds counted as free. Empty if it does not wait.
  std::string ssd_waits_why{};
  std::string ssd_short_of{};   // what the disk has, if less than ssd_bytes
  uint64_t ssd_write_rate = 0;  // bytes a second; 0 = no limit
};
// Pure. The SSD tier waits while the disk is below the floor, even if a size is set: a full disk
// hurts more than a smaller cache.
Budgets PlanBudgets(const Config& config, const Machine& machine);

}  // namespace prefixd::daemon
