#include "bench/ssd/disk_counters.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kSector = 512;  // of the kernel's counters, whatever the device has

}  // namespace

std::optional<uint64_t> DeviceBytesWritten(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  std::ifstream file(absl::StrCat("/sys/dev/block/", ::major(status.st_dev), ":",
                                  ::minor(status.st_dev), "/stat"));
  uint64_t fields[7] = {};  // reads, merged, sectors, ms; writes, merged, sectors
  for (uint64_t& field : fields) {
    if (!(file >> field)) return std::nullopt;
  }
  return fields[6] * kSector;
}

uint64_t ProcessBytesWritten(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/io"));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("write_bytes: ", 0) == 0) return std::stoull(line.substr(13));
  }
  return 0;
}

uint64_t AllocatedBytes(const std::string& directory) {
  uint64_t bytes = 0;
  std::set<ino_t> seen;   // a file that moves to another name meanwhile has both for a moment
  std::error_code error;  // files come and go meanwhile
  for (std::filesystem::recursive_directory_iterator at(directory, error), end; at != end && !error;
       at.increment(error)) {
    struct stat status {};
    if (::lstat(at->path().c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        seen.insert(status.st_ino).second) {
      bytes += static_cast<uint64_t>(status.st_blocks) * kSector;
    }
  }
  return bytes;
}

}  // namespace prefixd::bench
