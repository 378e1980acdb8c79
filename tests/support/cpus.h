// Where threads may run, as the kernel tells it.
#pragma once
#include <sched.h>
#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace prefixd {

// Of a thread, 0 for the calling one; none when it is gone.
inline cpu_set_t CpusOf(pid_t thread = 0) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  ::sched_getaffinity(thread, sizeof(cpus), &cpus);
  return cpus;
}

inline bool operator==(const cpu_set_t& a, const cpu_set_t& b) { return CPU_EQUAL(&a, &b) != 0; }

// The names of this process's threads that may run on `cpus` and nowhere else.
inline std::multiset<std::string> ThreadsOn(const cpu_set_t& cpus) {
  std::multiset<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (!(CpusOf(std::atoi(task.path().filename().c_str())) == cpus)) continue;
    std::string name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
    names.insert(name);
  }
  return names;
}

}  // namespace prefixd
