// Timing: medians of interleaved rounds, and what to say about a list of samples.
//
// One thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/common/bench.h"

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
double SpreadPercent(const std::vector<double>& samples);

// Times of sides that took turns.
struct Rounds {
  std::vector<uint64_t> bytes;               // by side
  std::vector<std::vector<double>> samples;  // by side, us a round
  double median_us(size_t side) const { return Quantile(samples[side], 0.5); }
  double bytes_per_s(size_t side) const;
  // Bytes/s of `side` over those of `reference`: median over the rounds, and its spread.
  double RateRatio(size_t side, size_t reference) const;
  double RateSpreadPercent(size_t side, size_t reference) const;
};
// Warms every side up once, then `rounds` rounds of one call each; every round begins with another
// side, so that none always runs behind the same neighbour.
Rounds TakeTurns(const std::vector<Side>& sides, uint64_t rounds);

// Two ways of moving bytes, ours first, round by round, and the CPU time that each took.
struct MovedRounds : Rounds {
  MovedRounds() : cpu_us(2) {
    bytes.resize(2);
    samples.resize(2);
  }
  void Add(size_t side, uint64_t moved, double us, double cpu);
  double CpuSecondsPerGb(size_t side) const;
  std::vector<std::vector<double>> cpu_us;  // by side
};

// Judges the rate of `side` as a share of the reference's. An empty text: its rate.
struct RateTarget {
  std::string name;
  double at_least = 0;
  std::string reference;  // "memcpy"
  size_t side = 0, reference_side = 1;
  std::string ours = {}, beside = {};  // texts
};
void JudgeRate(Bench& bench, const Rounds& rounds, const RateTarget& target);

}  // namespace prefixd::bench
