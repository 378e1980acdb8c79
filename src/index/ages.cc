#include "index/ages.h"

#include <algorithm>

namespace prefixd::index {

void Ages::Counting::Begin(uint64_t number, Run& run) {
  Flush(run);
  run.numbers = run.timeline->Find(number, run.latest).value_or(Timeline::Interval());
}

void Ages::Counting::Flush(Run& run) {
  if (run.blocks == 0) return;
  block::AgeHistogram one;
  one.Add(static_cast<uint64_t>(std::max<int64_t>(0, now_us_ - run.numbers.at_us)) / 1000);
  for (size_t i = 0; i < one.buckets.size(); ++i)
    run.histogram->buckets[i] += one.buckets[i] * run.blocks;
  run.histogram->count += run.blocks;
  run.histogram->sum_ms += one.sum_ms * run.blocks;
  run.blocks = 0;
}

}  // namespace prefixd::index
