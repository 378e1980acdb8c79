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

double Rate(const Side& side, double us) { return static_cast<double>(side.bytes) * 1e6 / us; }

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

Compared Compare(const Side& ours, const Side& reference, uint64_t rounds) {
  ours.run();
  reference.run();
  std::vector<double> of_ours, of_reference, ratios;
  for (uint64_t round = 0; round < rounds; ++round) {
    of_ours.push_back(MicrosOf(ours));
    of_reference.push_back(MicrosOf(reference));
    ratios.push_back(Rate(ours, of_ours.back()) / Rate(reference, of_reference.back()));
  }
  return {.ours = Summarize(of_ours),
          .reference = Summarize(of_reference),
          .rate_ratio = Quantile(ratios, 0.5)};
}

double SpreadPercent(const std::vector<double>& samples) {
  return Summarize(samples).spread_percent;
}

}  // namespace prefixd::bench
