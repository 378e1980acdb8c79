#include "base/process.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "os/process.h"

namespace prefixd::base {

ProcessName NameOf(uint64_t pid) {
  return {.pid = pid, .start = os::FactsOf(pid).start, .pid_namespace = os::PidNamespace()};
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
  if (process.pid == 0 || process.start == 0 || process.pid_namespace != os::PidNamespace()) {
    return Life::kUnknown;
  }
  const uint64_t start = os::FactsOf(process.pid).start;
  if (start != 0 && start != process.start) return Life::kGone;
  return LifeOf(process.pid);
}

Life LifeOf(uint64_t pid) {
  if (pid == 0) return Life::kUnknown;
  const os::ProcessFacts facts = os::FactsOf(pid);
  if (facts.start != 0) return facts.is_ending ? Life::kEnding : Life::kLives;
  const bool gone = kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH;
  return gone ? Life::kGone : Life::kUnknown;
}

}  // namespace prefixd::base
