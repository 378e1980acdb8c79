#include "cache/load/load_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace prefixd::cache {
namespace {

// Loads this far apart are both within twice of what stands between them, with some room.
constexpr double kReach = 3.5;

// The middle of the narrowest of those windows of width kReach that hold most samples.
double MostWithinReach(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  size_t best_count = 0;
  double best_low = 1, best_high = 1;
  for (size_t first = 0; first < samples.size(); ++first) {
    const double low = samples[first];
    const auto end = std::upper_bound(samples.begin(), samples.end(), low * kReach);
    const size_t count = static_cast<size_t>(end - samples.begin()) - first;
    const double high = *(end - 1);
    if (count < best_count || (count == best_count && high / low >= best_high / best_low)) continue;
    best_count = count;
    best_low = low;
    best_high = high;
  }
  return std::sqrt(best_low * best_high);
}

}  // namespace

size_t LoadModel::BucketOf(uint64_t bytes) {
  return std::min(static_cast<size_t>(std::bit_width(bytes)), kBuckets) - 1;
}

double LoadModel::Factor(const Tier& tier, uint64_t bytes) {
  const size_t bucket = BucketOf(bytes);
  std::vector<double> samples;
  const auto take = [&](size_t from) {
    samples.insert(samples.end(), tier.factors[from].begin(), tier.factors[from].end());
  };
  for (size_t distance = 0; distance < kBuckets && samples.size() < kEnough; ++distance) {
    if (bucket + distance < kBuckets) take(bucket + distance);
    if (distance > 0 && bucket >= distance) take(bucket - distance);
  }
  return MostWithinReach(std::move(samples));
}

double LoadModel::Estimate(const Tier& tier, uint64_t bytes) {
  return bytes == 0 ? 0 : Factor(tier, bytes) * tier.Shape(bytes);
}

uint64_t LoadModel::EstimateMicros(uint64_t ram_bytes, uint64_t ssd_bytes,
                                   uint64_t far_bytes) const {
  base::MutexLock lock(mutex_);
  return static_cast<uint64_t>(Estimate(ram_, ram_bytes) + Estimate(ssd_, ssd_bytes) +
                               Estimate(far_, far_bytes));
}

void LoadModel::AddSample(Tier& tier, uint64_t bytes, double us) {
  std::vector<double>& samples = tier.factors[BucketOf(bytes)];
  if (samples.size() == kSamples) samples.erase(samples.begin());
  samples.push_back(us / tier.Shape(bytes));
}

void LoadModel::LearnFar(uint64_t bytes, uint64_t us) {
  if (bytes == 0) return;
  base::MutexLock lock(mutex_);
  AddSample(far_, bytes, static_cast<double>(std::max<uint64_t>(us, 1)));
}

void LoadModel::Learn(uint64_t ram_bytes, uint64_t ssd_bytes, uint64_t us) {
  if (us == 0 || ram_bytes + ssd_bytes == 0) return;
  base::MutexLock lock(mutex_);
  const double of_ram = Estimate(ram_, ram_bytes), of_ssd = Estimate(ssd_, ssd_bytes);
  const bool teaches_ssd = of_ssd > of_ram;
  Tier& tier = teaches_ssd ? ssd_ : ram_;
  const uint64_t bytes = teaches_ssd ? ssd_bytes : ram_bytes;
  const double rest = std::max(static_cast<double>(us) - (teaches_ssd ? of_ram : of_ssd), 1.0);
  AddSample(tier, bytes, rest);
}

}  // namespace prefixd::cache
