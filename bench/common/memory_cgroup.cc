#include "bench/common/memory_cgroup.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/child_process.h"

namespace prefixd::bench {
namespace {

namespace fs = std::filesystem;

// Where a hierarchy is mounted; empty: nowhere. `option`: that its mount has; empty: any.
std::string MountPoint(const std::string& wanted, const std::string& option) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, point, type, options;
    if (!(words >> device >> point >> type >> options) || type != wanted) continue;
    if (option.empty() || ("," + options + ",").find("," + option + ",") != std::string::npos) {
      return point;
    }
  }
  return "";
}

// Our cgroup's path below it; `controllers` as /proc/self/cgroup has them, empty for version 2.
std::string OwnPath(const std::string& controllers) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    if (line.substr(first + 1, second - first - 1) == controllers) return line.substr(second + 1);
  }
  return "";
}

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (file) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cgroup: ", path, ": ", std::strerror(errno)));
}

uint64_t Field(const std::string& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  for (uint64_t value = 0; file >> name >> value;) {
    if (name == wanted) return value;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryCgroup>> MemoryCgroup::Make(uint64_t limit_bytes) {
  if (::geteuid() != 0) return absl::UnavailableError("cgroup: not root");
  auto made = MakeV2(limit_bytes);
  if (made.ok()) return made;
  auto older = MakeV1(limit_bytes);
  if (older.ok()) return older;
  return absl::UnavailableError(absl::StrCat(std::string(made.status().message()), "; ",
                                             std::string(older.status().message())));
}

absl::StatusOr<std::unique_ptr<MemoryCgroup>> MemoryCgroup::MakeV2(uint64_t limit_bytes) {
  const std::string mount = MountPoint("cgroup2", ""), path = OwnPath("");
  if (mount.empty() || path.empty()) return absl::UnavailableError("cgroup: version 2 is not here");
  const fs::path own = mount + path;
  // Beside ours: a cgroup with processes of its own hands no controller down.
  const fs::path parent = path == "/" ? own : own.parent_path();
  const std::string controllers = ReadText(parent / "cgroup.subtree_control");
  if (controllers.find("memory") == std::string::npos) {
    return absl::UnavailableError(
        absl::StrCat("cgroup: ", parent.string(), " hands no memory controller down, it has \"",
                     controllers.substr(0, controllers.find('\n')), "\""));
  }
  return MakeIn(parent, own, {"memory.max", "memory.peak", "memory.events"}, limit_bytes);
}

absl::StatusOr<std::unique_ptr<MemoryCgroup>> MemoryCgroup::MakeV1(uint64_t limit_bytes) {
  const std::string mount = MountPoint("cgroup", "memory"), path = OwnPath("memory");
  if (mount.empty() || path.empty()) return absl::UnavailableError("cgroup: version 1 is not here");
  const std::string own = mount + path;
  return MakeIn(own, own,
                {"memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"},
                limit_bytes);
}

absl::StatusOr<std::unique_ptr<MemoryCgroup>> MemoryCgroup::MakeIn(const std::string& parent,
                                                                   const std::string& own,
                                                                   const Files& files,
                                                                   uint64_t limit_bytes) {
  const fs::path folder = fs::path(parent) / absl::StrCat("prefixd-bench-", ::getpid());
  std::error_code error;
  if (!fs::create_directory(folder, error)) {
    return absl::UnavailableError(absl::StrCat("cgroup: ", folder.string(), ": ", error.message()));
  }
  auto made = std::unique_ptr<MemoryCgroup>(new MemoryCgroup(own, folder, files));
  PREFIXD_RETURN_IF_ERROR(Write(folder / files.limit, std::to_string(limit_bytes)));
  Write(folder / "memory.swap.max", "0").IgnoreError();  // where there is swap
  return made;
}

MemoryCgroup::~MemoryCgroup() { ::rmdir(folder_.c_str()); }

absl::Status MemoryCgroup::Enter() const { return Write(folder_ + "/cgroup.procs", "0"); }
absl::Status MemoryCgroup::Leave() const { return Write(own_ + "/cgroup.procs", "0"); }

uint64_t MemoryCgroup::peak_bytes() const {
  uint64_t bytes = 0;
  std::istringstream(ReadText(folder_ + "/" + files_.peak)) >> bytes;
  return bytes;
}

uint64_t MemoryCgroup::oom_kills() const {
  const std::string events = folder_ + "/" + files_.events;
  return Field(events, "oom_kill") + Field(events, "oom");
}

}  // namespace prefixd::bench
