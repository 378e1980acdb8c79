// The experiment of reference_decode.h as one side of a comparison: one layer of 8 kv heads, cold.
//
// One thread.
#pragma once
#include <cstdint>
#include <vector>

#include "bench/page_store.h"
#include "bench/reference_decode.h"
#include "bench/timing.h"

namespace prefixd::bench {

class Experiment {
 public:
  // Fills `memory`, which must outlive this. Requires: CanRunExperiment(), room for a layer.
  Experiment(HugeBytes& memory, uint32_t tokens);
  Side side();
  // Relative RMS of the experiment's own result against exact attention on the values that it
  // stores: that what is timed computes attention.
  static double Error();

 private:
  void Run();
  ExperimentPage* const pages_;
  const size_t page_count_;  // that fit
  const size_t head_pages_;  // of one kv head
  std::vector<float> query_, out_;
  size_t next_ = 0;
};

}  // namespace prefixd::bench
