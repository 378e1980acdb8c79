// The workloads, one file each.
#pragma once
#include "bench/common/bench.h"

namespace prefixd::bench {

void RunKernels(Bench& bench);
void RunKvCache(Bench& bench);
void RunShare(Bench& bench);
void RunQuality(Bench& bench);
void RunTrace(Bench& bench);
void RunSsd(Bench& bench);
void RunHits(Bench& bench);
void RunHostile(Bench& bench);
void RunEngines(Bench& bench);
void RunFleet(Bench& bench);
void RunRemote(Bench& bench);

}  // namespace prefixd::bench
