#include "client/worker/rope.h"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace prefixd::worker {

namespace {

float Scaled(float frequency, const RopeScaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  if (scaling.type == RopeScaling::Type::kNone) return frequency;
  if (scaling.type == RopeScaling::Type::kLinear) return frequency / factor;
  const auto low = static_cast<float>(scaling.low_frequency_factor);
  const auto high = static_cast<float>(scaling.high_frequency_factor);
  const auto original = static_cast<float>(scaling.original_tokens);
  const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / factor;
  const float kept = (original / wavelength - low) / (high - low);
  return (1 - kept) * frequency / factor + kept * frequency;
}

}  // namespace

Rope::Rope(uint32_t dim, double theta, const RopeScaling& scaling)
    : half_(dim / 2), frequencies_(half_) {
  for (uint32_t i = 0; i < half_; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    frequencies_[i] = Scaled(1.0F / std::pow(static_cast<float>(theta), exponent), scaling);
  }
}

void Rope::Prepare(uint32_t first, uint32_t count) {
  cos_.resize(size_t{count} * half_);
  sin_.resize(size_t{count} * half_);
  for (uint32_t row = 0; row < count; ++row) {
    for (uint32_t i = 0; i < half_; ++i) {
      const float angle = static_cast<float>(first + row) * frequencies_[i];
      cos_[size_t{row} * half_ + i] = std::cos(angle);
      sin_[size_t{row} * half_ + i] = std::sin(angle);
    }
  }
}

}  // namespace prefixd::worker
