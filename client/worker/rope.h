// Rotary position embedding as Hugging Face pairs it: channel i turns with channel i + dim / 2 of
// the first `dim` channels. The other channels stay.
//
// Angles are computed in float32, as the reference does: at position 8,000 a double would differ
// from it in the fourth digit of the fastest channel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/worker/model_config.h"

namespace prefixd::worker {

class Rope {
 public:
  // Requires: dim is even.
  Rope(uint32_t dim, double theta, const RopeScaling& scaling = {});

  // Computes the angles of positions [first, first + count). Not thread-safe.
  void Prepare(uint32_t first, uint32_t count);

  // [count][half()]: a vector (a, b) of two channels becomes (a cos - b sin, b cos + a sin).
  std::span<const float> cos() const { return cos_; }
  std::span<const float> sin() const { return sin_; }
  uint32_t half() const { return half_; }

 private:
  uint32_t half_;
  std::vector<float> frequencies_;  // [half]
  std::vector<float> cos_, sin_;    // [count][half]
};

}  // namespace prefixd::worker
