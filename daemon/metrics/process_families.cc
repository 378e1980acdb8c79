#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/metrics/stats_families.h"

namespace prefixd::daemon {
namespace {

// The fields of /proc/self/stat that follow the process's name, which may have spaces in it. The
// first is the state, field 3 of proc(5).
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  std::vector<std::string> fields;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return fields;
  std::istringstream rest(text.substr(name_end + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

// Returns the number behind `key` in a file of lines "key: number" or "key number".
std::optional<double> NumberIn(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    double number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

void AddTimes(const std::vector<std::string>& fields, Families* families) {
  constexpr size_t kUserTicks = 11, kSystemTicks = 12, kStartTicks = 19;
  const auto tick_s = 1.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  families->Counter("process_cpu_seconds_total", "CPU time, user's and system's.",
                    (std::stod(fields[kUserTicks]) + std::stod(fields[kSystemTicks])) * tick_s);
  if (const auto boot_s = NumberIn("/proc/stat", "btime")) {
    families->Gauge("process_start_time_seconds", "When the process began, in Unix time.",
                    *boot_s + std::stod(fields[kStartTicks]) * tick_s);
  }
}

void AddMemory(const std::vector<std::string>& fields, Families* families) {
  constexpr size_t kVirtualBytes = 20, kResidentPages = 21;
  families->Gauge("process_virtual_memory_bytes", "Address space in use.",
                  std::stod(fields[kVirtualBytes]));
  families->Gauge("process_resident_memory_bytes", "Memory in use, the shared arena included.",
                  std::stod(fields[kResidentPages]) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
}

void AddDescriptors(Families* families) {
  std::error_code error;
  double open = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++open;
  }
  if (!error) families->Gauge("process_open_fds", "Open file descriptors.", open);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families->Gauge("process_max_fds", "The most that may be open.",
                    static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace

void AddProcess(Families* families) {
  constexpr size_t kFields = 22;
  if (const std::vector<std::string> fields = StatFields(); fields.size() >= kFields) {
    AddTimes(fields, families);
    AddMemory(fields, families);
  }
  AddDescriptors(families);
  if (const auto bytes = NumberIn("/proc/self/io", "write_bytes:")) {
    families->Counter("prefixd_disk_written_bytes_total",
                      "Bytes that the process made disks write: the SSD tier with its metadata, "
                      "rewritten pages included.",
                      *bytes);
  }
}

}  // namespace prefixd::daemon
