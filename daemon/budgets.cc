#include "daemon/budgets.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/status.h"
#include "os/machine.h"

namespace prefixd::daemon {
namespace {

uint64_t AllocatedBytes(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(directory, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) == 0)
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Machine> MeasureMachine(const std::string& directory) {
  Machine machine{.available_memory =
                      std::min(os::MemoryAvailable("").value_or(0), os::GroupMemoryLeft())};
  std::filesystem::path existing = std::filesystem::absolute(directory);
  std::error_code error;
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  struct statvfs disk {};
  if (::statvfs(existing.c_str(), &disk) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "directory: cannot measure the disk of ", existing.string(), ": ", std::strerror(errno)));
  }
  machine.disk_bytes = static_cast<uint64_t>(disk.f_blocks) * disk.f_frsize;
  machine.disk_free =
      static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize + AllocatedBytes(directory);
  return machine;
}

Budgets PlanBudgets(const Config& config, const Machine& machine) {
  Budgets budgets{.ram_bytes = config.ram.Of(machine.available_memory), .ssd_bytes = 0};
  constexpr uint64_t kDisksADay = 3;  // what data centre drives stand for five years
  budgets.ssd_write_rate =
      config.ssd_write_rate.value_or(machine.disk_bytes * kDisksADay / (24 * 3600));
  if (config.ssd_mode == SsdMode::kOff) {
    budgets.ssd_off_why = "it was switched off";
    return budgets;
  }
  if (machine.disk_free < config.ssd_floor_bytes) {
    budgets.ssd_waits_why =
        absl::StrCat("the disk has ", base::FormatBytes(machine.disk_free), " free, the floor is ",
                     base::FormatBytes(config.ssd_floor_bytes));
  }
  const bool waits = !budgets.ssd_waits_why.empty();
  const uint64_t room = waits ? machine.disk_bytes : machine.disk_free - config.ssd_floor_bytes;
  budgets.ssd_bytes = config.ssd_mode == SsdMode::kSize ? config.ssd.Of(machine.disk_bytes)
                                                        : std::min(machine.disk_bytes / 10, room);
  const uint64_t least = 2 * config.segment_bytes;
  if (config.ssd_mode == SsdMode::kAuto && budgets.ssd_bytes < least) {
    budgets.ssd_off_why =
        absl::StrCat("only ", base::FormatBytes(budgets.ssd_bytes),
                     " are left above the floor, two segments are ", base::FormatBytes(least));
    budgets.ssd_bytes = 0;
  }
  if (!waits && budgets.ssd_bytes > room) {
    budgets.ssd_short_of = absl::StrCat(base::FormatBytes(room), " above the floor of ",
                                        base::FormatBytes(config.ssd_floor_bytes));
  }
  return budgets;
}

}  // namespace prefixd::daemon
