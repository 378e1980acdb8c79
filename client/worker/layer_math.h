// The small functions between a decoder's matrix products.
//
// Pure functions, thread-safe.
#pragma once
#include <cmath>
#include <cstddef>
#include <span>

namespace prefixd::worker {

// `out` may be `in`. Requires: both hold weight.size() floats.
inline void RmsNorm(const float* in, std::span<const float> weight, float epsilon, float* out) {
  const size_t width = weight.size();
  double squares = 0;
  for (size_t i = 0; i < width; ++i) squares += double{in[i]} * double{in[i]};
  const float mean = static_cast<float>(squares / static_cast<double>(width));
  const float factor = 1.0F / std::sqrt(mean + epsilon);
  for (size_t i = 0; i < width; ++i) out[i] = weight[i] * (in[i] * factor);
}

inline float Sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }
inline float Silu(float x) { return x / (1.0F + std::exp(-x)); }
inline float Softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }
inline float GeluTanh(float x) {
  constexpr float kRootOfTwoByPi = 0.7978845608F;
  return 0.5F * x * (1.0F + std::tanh(kRootOfTwoByPi * (x + 0.044715F * x * x * x)));
}

}  // namespace prefixd::worker
