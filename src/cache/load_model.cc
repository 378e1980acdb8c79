#include "cache/load_model.h"

#include <algorithm>
#include <bit>

namespace prefixd::cache {
namespace {

double Median(std::vector<double> samples) {
  auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace

double LoadModel::Estimate(const Tier& tier, uint64_t bytes) {
  if (bytes == 0) return 0;
  const size_t bucket = static_cast<size_t>(std::bit_width(bytes) - 1);
  // The bucket itself, else the nearest that was ever measured: a larger one first, whose rate is
  // the better guide.
  for (size_t distance = 0; distance < kBuckets; ++distance) {
    for (size_t near : {bucket + distance, bucket - distance}) {
      if (near < kBuckets && !tier.us_per_byte[near].empty()) {
        return Median(tier.us_per_byte[near]) * static_cast<double>(bytes);
      }
    }
  }
  return tier.default_fixed_us + tier.default_us_per_byte * static_cast<double>(bytes);
}

uint64_t LoadModel::EstimateMicros(uint64_t ram_bytes, uint64_t ssd_bytes) const {
  base::MutexLock lock(mutex_);
  return static_cast<uint64_t>(Estimate(ram_, ram_bytes) + Estimate(ssd_, ssd_bytes));
}

void LoadModel::Learn(uint64_t ram_bytes, uint64_t ssd_bytes, uint64_t us) {
  if (us == 0 || ram_bytes + ssd_bytes == 0) return;
  base::MutexLock lock(mutex_);
  const double of_ram = Estimate(ram_, ram_bytes), of_ssd = Estimate(ssd_, ssd_bytes);
  const bool teaches_ssd = of_ssd > of_ram;
  const double rest = std::max(static_cast<double>(us) - (teaches_ssd ? of_ram : of_ssd), 1.0);
  const uint64_t bytes = teaches_ssd ? ssd_bytes : ram_bytes;
  std::vector<double>& samples =
      (teaches_ssd ? ssd_ : ram_).us_per_byte[static_cast<size_t>(std::bit_width(bytes) - 1)];
  if (samples.size() == kSamples) samples.erase(samples.begin());
  samples.push_back(rest / static_cast<double>(bytes));
}

}  // namespace prefixd::cache
