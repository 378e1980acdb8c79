#include "daemon/budgets.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "absl/strings/numbers.h"

#include "base/status.h"

namespace prefixd::daemon {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

uint64_t ReadNumber(const std::string& path, uint64_t otherwise) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  return file >> word && absl::SimpleAtoi(word, &number)
             ? number
             : otherwise;  // "max" is not a number: no limit
}

uint64_t MemAvailable() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib << 10;
  }
  return 0;
}

// Returns what a cgroup may still take of its limit. `used` is charged to it; the kernel gives up
// `cached` of that when asked. kUnlimited without a limit.
uint64_t Left(uint64_t limit, uint64_t used, uint64_t cached) {
  if (limit == kUnlimited) return kUnlimited;
  const uint64_t held = used - std::min(used, cached);
  return limit - std::min(limit, held);
}

uint64_t StatField(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  for (std::string name, value; file >> name >> value;) {
    uint64_t number = 0;
    if (name == wanted && absl::SimpleAtoi(value, &number)) return number;
  }
  return 0;
}

// Returns the least that any cgroup from ours up to the root may still take. Does not see
// controllers that are mounted elsewhere than /sys/fs/cgroup.
uint64_t CgroupAvailable() {
  uint64_t least = kUnlimited;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers != "memory") continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::filesystem::path at = line.substr(second + 1);; at = at.parent_path()) {
      const std::string folder = root + at.string() + "/";
      least = std::min(least, v2 ? Left(ReadNumber(folder + "memory.max", kUnlimited),
                                        ReadNumber(folder + "memory.current", 0),
                                        StatField(folder + "memory.stat", "inactive_file"))
                                 : Left(ReadNumber(folder + "memory.limit_in_bytes", kUnlimited),
                                        ReadNumber(folder + "memory.usage_in_bytes", 0),
                                        StatField(folder + "memory.stat", "total_inactive_file")));
      if (at == at.parent_path()) break;
    }
  }
  return least;
}

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
  Machine machine{.available_memory = std::min(MemAvailable(), CgroupAvailable())};
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
