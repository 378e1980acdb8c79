// Timing: medians of interleaved rounds, and what to say about a list of samples.
//
// One thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/bench.h"

namespace prefixd::bench {

double NowMicros();  // monotonic

// Requires: samples not empty. q in [0, 1].
double Quantile(std::vector<double> samples, double q);

// One side of a comparison: `run` handles `bytes` once.
struct Side {
  std::string name;
  uint64_t bytes = 0;
  std::function<void()> run;
};

struct Timed {
  double median_us = 0;
  double spread_percent = 0;  // between the quartiles, of the median
};
Timed Summarize(const std::vector<double>& samples_us);  // Requires: not empty.

struct Compared {
  Timed ours, reference;
  double rate_ratio = 0;  // median over the rounds of our bytes/s over the reference's
};

// Warms both up, then takes turns for `rounds` rounds: what else the machine does hits both alike.
Compared Compare(const Side& ours, const Side& reference, uint64_t rounds);

// Median, spread, bytes/s and the ratio to the reference, under ours.name.
Row CompareRow(const Side& ours, const Side& reference, uint64_t rounds);

}  // namespace prefixd::bench
