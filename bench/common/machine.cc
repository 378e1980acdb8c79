#include "bench/common/machine.h"

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "kernels/attention.h"

namespace prefixd::bench {
namespace {

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

unsigned UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return static_cast<unsigned>(CPU_COUNT(&cores));
}

}  // namespace

Machine ThisMachine() {
  Machine machine{.cpu = CpuModel(),
                  .cores = UsableCores(),
                  .target = kernels::AttentionTarget(),
                  .memory_bytes = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                                  static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)),
                  .load_average = 0};
  ::getloadavg(&machine.load_average, 1);
  return machine;
}

std::string ToText(const Machine& machine) {
  char text[400];
  std::snprintf(text, sizeof(text), "%s, %u cores, kernels on %s, %.1f GiB, load %.1f",
                machine.cpu.c_str(), machine.cores, machine.target.c_str(),
                static_cast<double>(machine.memory_bytes) / (1 << 30), machine.load_average);
  return text;
}

}  // namespace prefixd::bench
