#include "bench/memory_cgroup.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/child_process.h"

namespace prefixd::bench {
namespace {

namespace fs = std::filesystem;

// Where version 2 is mounted; empty: nowhere.
std::string MountPoint() {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, point, type;
    if (words >> device >> point >> type && type == "cgroup2") return point;
  }
  return "";
}

// Our cgroup's path below it.
std::string OwnPath() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
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
  const std::string mount = MountPoint(), path = OwnPath();
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
  const fs::path folder = parent / absl::StrCat("prefixd-bench-", ::getpid());
  std::error_code error;
  if (!fs::create_directory(folder, error)) {
    return absl::UnavailableError(absl::StrCat("cgroup: ", folder.string(), ": ", error.message()));
  }
  auto made = std::unique_ptr<MemoryCgroup>(new MemoryCgroup(own, folder));
  PREFIXD_RETURN_IF_ERROR(Write(folder / "memory.max", std::to_string(limit_bytes)));
  Write(folder / "memory.swap.max", "0").IgnoreError();  // where there is swap
  return made;
}

MemoryCgroup::~MemoryCgroup() { ::rmdir(folder_.c_str()); }

absl::Status MemoryCgroup::Enter() const { return Write(folder_ + "/cgroup.procs", "0"); }
absl::Status MemoryCgroup::Leave() const { return Write(own_ + "/cgroup.procs", "0"); }

uint64_t MemoryCgroup::peak_bytes() const {
  uint64_t bytes = 0;
  std::istringstream(ReadText(folder_ + "/memory.peak")) >> bytes;
  return bytes;
}

uint64_t MemoryCgroup::oom_kills() const {
  return Field(folder_ + "/memory.events", "oom_kill") + Field(folder_ + "/memory.events", "oom");
}

}  // namespace prefixd::bench
