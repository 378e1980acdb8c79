#include "bench/common/timing.h"

#include <algorithm>
#include <chrono>

namespace prefixd::bench {
namespace {

double MicrosOf(const Side& side) {
  const double start = NowMicros();
  side.run();
  return std::max(NowMicros() - start, 1e-3);
}

}  // namespace

double NowMicros() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Quantile(std::vector<double> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const double place = q * static_cast<double>(samples.size() - 1);
  return samples[static_cast<size_t>(place + 0.5)];
}

Timed Summarize(const std::vector<double>& samples_us) {
  const double median = Quantile(samples_us, 0.5);
  return {
      .median_us = median,
      .spread_percent = 100 * (Quantile(samples_us, 0.75) - Quantile(samples_us, 0.25)) / median};
}

namespace {

std::vector<double> RateRatios(const Rounds& rounds, size_t side, size_t reference) {
  std::vector<double> ratios;
  const double bytes =
      static_cast<double>(rounds.bytes[side]) / static_cast<double>(rounds.bytes[reference]);
  for (size_t i = 0; i < rounds.samples[side].size(); ++i) {
    ratios.push_back(bytes * rounds.samples[reference][i] / rounds.samples[side][i]);
  }
  return ratios;
}

}  // namespace

double Rounds::bytes_per_s(size_t side) const {
  return static_cast<double>(bytes[side]) * 1e6 / median_us(side);
}

double Rounds::RateRatio(size_t side, size_t reference) const {
  return Quantile(RateRatios(*this, side, reference), 0.5);
}

double Rounds::RateSpreadPercent(size_t side, size_t reference) const {
  return Summarize(RateRatios(*this, side, reference)).spread_percent;
}

Rounds TakeTurns(const std::vector<Side>& sides, uint64_t rounds) {
  Rounds taken;
  for (const Side& side : sides) {
    side.run();
    taken.bytes.push_back(side.bytes);
  }
  taken.samples.resize(sides.size());
  for (uint64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sides.size(); ++i) {
      const size_t side = (i + round) % sides.size();
      taken.samples[side].push_back(MicrosOf(sides[side]));
    }
  }
  return taken;
}

void MovedRounds::Add(size_t side, uint64_t moved, double us, double cpu) {
  bytes[side] = moved;
  samples[side].push_back(us);
  cpu_us[side].push_back(cpu);
}

double MovedRounds::CpuSecondsPerGb(size_t side) const {
  return Quantile(cpu_us[side], 0.5) * 1e3 / static_cast<double>(bytes[side]);
}

void JudgeRate(Bench& bench, const Rounds& rounds, const RateTarget& target) {
  const auto rate = [&](size_t side) { return RateText(rounds.bytes_per_s(side), 1e6); };
  bench.Judge({.name = target.name,
               .ours = target.ours.empty() ? rate(target.side) : target.ours,
               .reference = target.beside.empty()
                                ? target.reference + " " + rate(target.reference_side)
                                : target.beside,
               .seen = rounds.RateRatio(target.side, target.reference_side),
               .at_most = false,
               .limit = target.at_least,
               .runs = rounds.samples[target.side].size(),
               .spread_percent = rounds.RateSpreadPercent(target.side, target.reference_side)});
}

double SpreadPercent(const std::vector<double>& samples) {
  return Summarize(samples).spread_percent;
}

}  // namespace prefixd::bench
