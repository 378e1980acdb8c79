#include "client/worker/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace prefixd::worker {

uint32_t Sampler::Sample(std::span<const float> logits) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature_ <= 0) return static_cast<uint32_t>(largest - logits.begin());

  weights_.resize(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((double{logits[i]} - double{*largest}) / temperature_);
    total += weights_[i];
  }
  double left = total * (static_cast<double>(random_() >> 11) * 0x1p-53);
  for (size_t i = 0; i < logits.size(); ++i) {
    left -= weights_[i];
    if (left < 0) return static_cast<uint32_t>(i);
  }
  return static_cast<uint32_t>(largest - logits.begin());  // rounding used the last weight up
}

}  // namespace prefixd::worker
