#include "os/process.h"

#include <malloc.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace prefixd::os {
namespace {

// PF_EXITING and PF_DUMPCORE of the kernel's process flags.
constexpr uint64_t kExiting = 0x4 | 0x200;

// proc(5)'s numbers of fields, less 3.
enum Field : size_t {
  kState = 0,
  kFlags = 6,
  kUserTicks = 11,
  kSystemTicks = 12,
  kStart = 19,
  kVirtualBytes = 20,
  kResidentPages = 21,
  kSignal = 28,
  kFields
};

// Returns the fields of a stat file that follow the process's name, which may hold anything. Empty
// if they cannot be read, or are fewer than are known.
std::vector<std::string> StatFields(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string line = text.str();
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  if (words.size() < kFields) words.clear();
  return words;
}

uint64_t Number(const std::string& word) { return std::strtoull(word.c_str(), nullptr, 10); }

// Returns the number behind `key` in a file of lines "key: number" or "key number".
std::optional<double> NumberIn(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    double number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

}  // namespace

ProcessFacts FactsOf(uint64_t pid) {
  // The entry of the first thread has the same values. qemu-user makes up /proc/PID/stat for the
  // process itself, with a start that differs from what other processes read.
  const std::string number = std::to_string(pid);
  const std::vector<std::string> fields =
      StatFields("/proc/" + number + "/task/" + number + "/stat");
  if (fields.empty()) return {};
  const char state = fields[kState][0];
  const bool dead = state == 'Z' || state == 'X' || state == 'x';
  const bool killed = (Number(fields[kSignal]) >> (SIGKILL - 1) & 1) != 0;
  return {.start = Number(fields[kStart]),
          .is_ending = dead || killed || (Number(fields[kFlags]) & kExiting) != 0};
}

uint64_t PidNamespace() {
  struct stat info = {};
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

std::optional<OwnUse> UseOfThisProcess() {
  const std::vector<std::string> fields = StatFields("/proc/self/stat");
  if (fields.empty()) return std::nullopt;
  const auto tick_s = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  OwnUse use{.cpu_s = (std::stod(fields[kUserTicks]) + std::stod(fields[kSystemTicks])) * tick_s,
             .started_s = {},
             .address_space_bytes = std::stod(fields[kVirtualBytes]),
             .resident_bytes = std::stod(fields[kResidentPages]) * page_bytes};
  if (const auto boot_s = NumberIn("/proc/stat", "btime")) {
    use.started_s = *boot_s + std::stod(fields[kStart]) * tick_s;
  }
  return use;
}

std::optional<double> BytesToDisk() { return NumberIn("/proc/self/io", "write_bytes:"); }

std::optional<uint64_t> AnonymousBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total = 0, resident = 0, of_files = 0;
  if (!(statm >> total >> resident >> of_files)) return std::nullopt;
  return (resident - of_files) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void NameThisThread(const char* name) { pthread_setname_np(pthread_self(), name); }

char** Variables() { return environ; }

void StartAgain(char** argv) { execv("/proc/self/exe", argv); }

void LimitHeap(const HeapLimits& limits) {
  mallopt(M_MMAP_THRESHOLD, limits.map_bytes);
  mallopt(M_TRIM_THRESHOLD, limits.trim_bytes);
  mallopt(M_ARENA_MAX, limits.heaps);
}

uint64_t AllocatedBytes() {
  const auto heaps = mallinfo2();
  return heaps.uordblks + heaps.hblkhd;
}

void TrimHeap() { malloc_trim(0); }

}  // namespace prefixd::os
