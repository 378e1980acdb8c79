#include "base/process.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace prefixd::base {
namespace {

// PF_EXITING and PF_DUMPCORE of the kernel's process flags.
constexpr uint64_t kExiting = 0x4 | 0x200;

// The fields of the kernel's stat of a process; `start` is 0 if it cannot be read.
struct Stat {
  char state = '?';
  uint64_t flags = 0, start = 0, pending_signals = 0;
};

Stat ReadStat(uint64_t pid) {
  // The entry of the first thread has the same values. qemu-user makes up /proc/PID/stat for the
  // process itself, with a start that differs from what other processes read.
  const std::string number = std::to_string(pid);
  std::stringstream text;
  text << std::ifstream("/proc/" + number + "/task/" + number + "/stat").rdbuf();
  const std::string line = text.str();
  // The second field, a name in parentheses, may hold anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  constexpr size_t kState = 0, kFlags = 6, kStart = 19, kSignal = 28;  // proc(5)'s numbers less 3
  if (words.size() <= kSignal) return {};
  return {.state = words[kState][0],
          .flags = std::strtoull(words[kFlags].c_str(), nullptr, 10),
          .start = std::strtoull(words[kStart].c_str(), nullptr, 10),
          .pending_signals = std::strtoull(words[kSignal].c_str(), nullptr, 10)};
}

uint64_t PidNamespace() {
  struct stat info = {};
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<uint64_t>(info.st_ino) : 0;
}

bool Ending(const Stat& stat) {
  const bool dead = stat.state == 'Z' || stat.state == 'X' || stat.state == 'x';
  const bool killed = (stat.pending_signals >> (SIGKILL - 1) & 1) != 0;
  return dead || killed || (stat.flags & kExiting) != 0;
}

}  // namespace

ProcessName NameOf(uint64_t pid) {
  return {.pid = pid, .start = ReadStat(pid).start, .pid_namespace = PidNamespace()};
}

ProcessName ThisProcess() { return NameOf(static_cast<uint64_t>(getpid())); }

std::string Encode(const ProcessName& process) {
  std::string line = "pid " + std::to_string(process.pid) + " start " +
                     std::to_string(process.start) + " namespace " +
                     std::to_string(process.pid_namespace);
  line.resize(kProcessLineBytes - 1, ' ');
  return line + "\n";
}

ProcessName DecodeProcess(std::string_view line) {
  const std::string text(line.substr(0, kProcessLineBytes));
  unsigned long long pid = 0, start = 0, pid_namespace = 0;
  if (text.size() != kProcessLineBytes || text.back() != '\n' ||
      std::sscanf(text.c_str(), "pid %llu start %llu namespace %llu", &pid, &start,
                  &pid_namespace) != 3) {
    return {};
  }
  return {.pid = pid, .start = start, .pid_namespace = pid_namespace};
}

Life LifeOf(const ProcessName& process) {
  if (process.pid == 0 || process.start == 0 || process.pid_namespace != PidNamespace()) {
    return Life::kUnknown;
  }
  const uint64_t start = ReadStat(process.pid).start;
  if (start != 0 && start != process.start) return Life::kGone;
  return LifeOf(process.pid);
}

Life LifeOf(uint64_t pid) {
  if (pid == 0) return Life::kUnknown;
  const Stat stat = ReadStat(pid);
  if (stat.start != 0) return Ending(stat) ? Life::kEnding : Life::kLives;
  const bool gone = kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
  return gone ? Life::kGone : Life::kUnknown;
}

}  // namespace prefixd::base
