// Chooses the next token from logits.
#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace prefixd::worker {

// One request's choices: the same seed and logits give the same tokens, whatever ran before. One
// thread at a time.
class Sampler {
 public:
  // temperature 0 = greedy: the largest logit, the lowest token among equals.
  Sampler(double temperature, uint64_t seed) : temperature_(temperature), random_(seed) {}

  // Requires: logits is not empty.
  uint32_t Sample(std::span<const float> logits);

 private:
  const double temperature_;
  std::mt19937_64 random_;       // the same numbers on every platform, unlike std's distributions
  std::vector<double> weights_;  // scratch
};

}  // namespace prefixd::worker
