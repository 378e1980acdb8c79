// The machine that a report speaks of.
#pragma once
#include <cstdint>
#include <string>

namespace prefixd::bench {

struct Machine {
  std::string cpu;     // the model's name, "unknown" without /proc/cpuinfo
  unsigned cores = 0;  // that this process may use
  std::string target;  // what the kernels dispatch to, "AVX2" for example
  uint64_t memory_bytes = 0;
  double load_average = 0;  // of the last minute: others at work spoil the figures
};
Machine ThisMachine();

// "Intel(R) Xeon(R) Processor, 2 cores, kernels on AVX3_SPR, 23.5 GiB, load 0.3"
std::string ToText(const Machine& machine);

}  // namespace prefixd::bench
