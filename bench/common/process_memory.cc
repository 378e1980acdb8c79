#include "bench/common/process_memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace prefixd::bench {
namespace {

// A line "Field:   123 kB" of a file of the kernel's.
uint64_t FieldOf(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) return std::stoull(line.substr(field.size())) * 1024;
  }
  return 0;
}

}  // namespace

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  if (!(statm >> total >> resident)) return 0;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

uint64_t AnonymousBytes(pid_t pid) {
  return FieldOf(("/proc/" + std::to_string(pid) + "/status").c_str(), "RssAnon:");
}

uint64_t AllocatedBytes(pid_t pid) {
  return AnonymousBytes(pid) +
         FieldOf(("/proc/" + std::to_string(pid) + "/status").c_str(), "RssShmem:");
}

MemoryUse MemoryUseOf(pid_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/smaps_rollup";
  return {.private_bytes =
              FieldOf(path.c_str(), "Private_Clean:") + FieldOf(path.c_str(), "Private_Dirty:"),
          .pss_bytes = FieldOf(path.c_str(), "Pss:")};
}

uint64_t BytesWritten(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/io");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("write_bytes: ")) return std::stoull(line.substr(13));
  }
  return 0;
}

uint64_t AvailableBytes() { return FieldOf("/proc/meminfo", "MemAvailable:"); }

}  // namespace prefixd::bench
