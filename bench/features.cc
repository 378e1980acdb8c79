#include "bench/features.h"

#include <utility>

#include "bench/kernels.h"
#include "bench/workloads.h"

namespace prefixd::bench {

// Errors, sizes, linear times and extra memory of quantizing: the same lines as of `kernels`.
void FeaturesNumbers(Bench& bench) {
  KernelsNumbers(bench);
  if (!bench.targets_only()) KernelsTable(bench);
}

void RunFeatures(Bench& bench) {
  const std::pair<const char*, void (*)(Bench&)> families[] = {
      {"table", FeaturesTable},    {"descriptors", FeaturesDescriptors},
      {"shapes", FeaturesShapes},  {"chain", FeaturesChain},
      {"hybrid", FeaturesHybrid},  {"overhead", FeaturesOverhead},
      {"numbers", FeaturesNumbers}};
  for (const auto& [name, run] : families) {
    if (bench.Wants(name)) run(bench);
  }
}

}  // namespace prefixd::bench
