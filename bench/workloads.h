// The workloads, one file each.
#pragma once
#include <string>

#include "bench/bench.h"

namespace prefixd::bench {

void RunKernels(Bench& bench);
void RunKvCache(Bench& bench);
void RunMatch(Bench& bench);
void RunLoad(Bench& bench);
void RunBudget(Bench& bench);
void RunShare(Bench& bench);
void RunServe(Bench& bench);
void RunQuality(Bench& bench);
void RunTrace(Bench& bench);
void RunSsd(Bench& bench);
void RunFeatures(Bench& bench);
void RunHostile(Bench& bench);

// One client process of RunBudget; `plan` is RunBudget's own JSON. Prints its result as JSON.
int RunBudgetClient(const std::string& plan);

}  // namespace prefixd::bench
