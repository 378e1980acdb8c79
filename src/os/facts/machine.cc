#include "os/machine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>

namespace prefixd::os {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool ToNumber(const std::string& word, uint64_t* number) {
  const char* const end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, *number);
  return error == std::errc() && rest == end;
}

// Returns the number behind `name` in a file of lines, such as "MemTotal: 17 kB"; nullopt if none.
std::optional<uint64_t> Field(const std::string& path, const std::string& name) {
  std::istringstream lines(ReadAll(path));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    std::string word;
    uint64_t number = 0;
    if (words >> word && ToNumber(word, &number)) return number;
    if (word == "unlimited" || word == "max") return kNoLimit;
  }
  return std::nullopt;
}

// Returns the numbers that a file lists as "0-1,3", ascending; empty if there is no such file.
std::vector<unsigned> ReadRanges(const std::string& path) {
  std::vector<unsigned> numbers;
  std::istringstream ranges(ReadAll(path));
  for (unsigned first = 0; ranges >> first; ranges.ignore()) {
    unsigned last = first;
    if (ranges.peek() == '-') ranges.ignore() >> last;
    for (; first <= last; ++first) numbers.push_back(first);
  }
  return numbers;
}

std::string ProcessFolder(const std::string& root, uint64_t pid) {
  return root + (pid == 0 ? "/proc/self" : "/proc/" + std::to_string(pid));
}

// Returns how many CPUs the calling thread may run on. hardware_concurrency() would count the
// machine's.
unsigned CpusOfThisThread() {
  for (size_t most = 1'024; most <= size_t{1} << 20; most *= 2) {  // EINVAL: the machine has more
    std::vector<uint64_t> mask(most / 64);
    const size_t bytes = mask.size() * sizeof(uint64_t);
    auto* const set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (sched_getaffinity(0, bytes, set) == 0)
      return static_cast<unsigned>(std::max(1, CPU_COUNT_S(bytes, set)));
    if (errno != EINVAL) break;
  }
  return std::max(1U, std::thread::hardware_concurrency());
}

// Returns what a cgroup may still take of its limit. `used` is charged to it; the kernel gives up
// `cached` of that when asked. kNoLimit without a limit.
uint64_t Left(uint64_t limit, uint64_t used, uint64_t cached) {
  if (limit == kNoLimit) return kNoLimit;
  const uint64_t held = used - std::min(used, cached);
  return limit - std::min(limit, held);
}

// Calls `look` with the folder of each cgroup of a controller ("memory") from that of the process
// up to the root, and with whether it is of version 2. Does not see controllers that are mounted
// elsewhere than /sys/fs/cgroup.
template <typename Look>
void ForEachGroup(const std::string& root, const std::string& controller, uint64_t pid, Look look) {
  std::istringstream lines(ReadAll(ProcessFolder(root, pid) + "/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string mount = root + (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller);
    for (std::filesystem::path at = line.substr(second + 1);; at = at.parent_path()) {
      look(mount + at.string() + "/", v2);
      if (at == at.parent_path()) break;
    }
  }
}

// Returns the options of the mount that holds `path`.
std::string MountOptions(const std::string& root, const std::string& path) {
  std::istringstream lines(ReadAll(root + "/proc/self/mountinfo"));
  std::string best, options;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string at;
    for (int i = 0; i < 5; ++i) words >> at;  // the fifth is the mount point
    const bool above = path == at || path.starts_with(at == "/" ? at : at + "/");
    if (!above || at.size() < best.size()) continue;
    best = at;
    options = line.substr(line.find(" - ") == std::string::npos ? 0 : line.find(" - "));
  }
  return options;
}

}  // namespace

bool BootId(std::span<std::byte, 16> id) {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::erase(text, '-');
  if (text.size() != 2 * id.size()) return false;
  for (size_t i = 0; i < id.size(); ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + 2 * i;
    const auto [rest, error] = std::from_chars(digits, digits + 2, value, 16);
    if (error != std::errc() || rest != digits + 2) return false;
    id[i] = static_cast<std::byte>(value);
  }
  return true;
}

std::optional<uint64_t> MemoryAvailable(const std::string& root) {
  const std::optional<uint64_t> kib = Field(root + "/proc/meminfo", "MemAvailable:");
  return kib.has_value() ? std::optional(*kib << 10) : std::nullopt;
}

std::optional<uint64_t> SwapBytes(const std::string& root) {
  const std::optional<uint64_t> kib = Field(root + "/proc/meminfo", "SwapTotal:");
  return kib.has_value() ? std::optional(*kib << 10) : std::nullopt;
}

uint64_t GroupMemoryLeft() {
  uint64_t least = kNoLimit;
  ForEachGroup("", "memory", 0, [&](const std::string& folder, bool v2) {
    const auto number = [&](const char* file, const char* name, uint64_t otherwise) {
      return Field(folder + file, name).value_or(otherwise);
    };
    least = std::min(least,
                     v2 ? Left(number("memory.max", "", kNoLimit), number("memory.current", "", 0),
                               number("memory.stat", "inactive_file ", 0))
                        : Left(number("memory.limit_in_bytes", "", kNoLimit),
                               number("memory.usage_in_bytes", "", 0),
                               number("memory.stat", "total_inactive_file ", 0)));
  });
  return least;
}

uint64_t GroupMemoryLimit(const std::string& root, uint64_t pid) {
  uint64_t least = kNoLimit;
  ForEachGroup(root, "memory", pid, [&](const std::string& folder, bool v2) {
    const std::string file = folder + (v2 ? "memory.max" : "memory.limit_in_bytes");
    least = std::min(least, Field(file, "").value_or(kNoLimit));
  });
  return least >= uint64_t{1} << 60 ? kNoLimit : least;  // v1 writes a huge number for none
}

unsigned UsableCpus(const std::string& root) {
  uint64_t least = CpusOfThisThread();
  ForEachGroup(root, "cpu", 0, [&](const std::string& folder, bool v2) {
    // Version 1 writes a quota of -1 where there is none.
    std::istringstream words(v2 ? ReadAll(folder + "cpu.max")
                                : ReadAll(folder + "cpu.cfs_quota_us") + " " +
                                      ReadAll(folder + "cpu.cfs_period_us"));
    std::string first, second;
    uint64_t quota = 0, period = 0;
    words >> first >> second;
    if (!ToNumber(first, &quota) || !ToNumber(second, &period) || period == 0) return;
    least = std::min(least, std::max<uint64_t>(1, quota / period + (quota % period != 0 ? 1 : 0)));
  });
  return static_cast<unsigned>(least);
}

std::vector<unsigned> NumaNodes(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node/";
  const std::vector<unsigned> memory = ReadRanges(folder + "has_memory");
  const std::vector<unsigned> cpus = ReadRanges(folder + "has_cpu");
  std::vector<unsigned> nodes;
  std::ranges::set_intersection(memory, cpus, std::back_inserter(nodes));
  return nodes;
}

std::optional<uint64_t> DescriptorLimit(const std::string& root, uint64_t pid) {
  return Field(ProcessFolder(root, pid) + "/limits", "Max open files");
}

std::optional<bool> MountHasHugePages(const std::string& root, const std::string& path) {
  const std::string modes = ReadAll(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (modes.empty()) return std::nullopt;
  const std::string options = MountOptions(root, path);
  const bool by_mount = options.find("huge=within_size") != std::string::npos ||
                        options.find("huge=always") != std::string::npos ||
                        options.find("huge=advise") != std::string::npos;
  return modes.find("[deny]") == std::string::npos &&
         (by_mount || modes.find("[force]") != std::string::npos);
}

std::string KernelRelease(const std::string& root) {
  std::istringstream text(ReadAll(root + "/proc/sys/kernel/osrelease"));
  std::string release;
  text >> release;
  return release;
}

bool MapsAhead(const std::string& release) {
  int major = 0, minor = 0;
  char dot = 0;
  std::istringstream(release) >> major >> dot >> minor;
  return major > 5 || (major == 5 && minor >= 14);
}

std::string CpuFlags(const std::string& root) {
  std::istringstream lines(ReadAll(root + "/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("flags")) return line + " ";
  }
  return "";
}

}  // namespace prefixd::os
