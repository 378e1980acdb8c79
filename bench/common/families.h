// The families of figures of a workload, one after another, and how far they are.
//
// One thread.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/common/bench.h"

namespace prefixd::bench {

struct Family {
  std::string name;  // what --only says
  std::function<void()> run;
};

// Runs those that are wanted. Before each, standard error says how far the workload is, if that is
// a terminal.
void RunFamilies(Bench& bench, const std::vector<Family>& families);

// "share: gather, 4 of 9, 35 s so far, about 70 s left": the families that are left are taken to be
// as long as those before. `number` counts from 1.
std::string StepText(const std::string& workload, const std::string& family, size_t number,
                     size_t count, double seconds);

}  // namespace prefixd::bench
