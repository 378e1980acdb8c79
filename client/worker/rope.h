// Rotary position embedding as Hugging Face pairs it: channel i turns with channel i + dim / 2 of
// the first `dim` channels. The other channels stay.
//
// Angles are computed in float32, as the reference does: at position 8,000 a double would differ
// from it in the fourth digit of the fastest channel.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/worker/model_config.h"

namespace prefixd::worker {

class Rope {
 public:
  // Requires: dim is even.
  Rope(uint32_t dim, double theta, const RopeScaling& scaling = {});

  // Makes Rotate() ready for positions [first, first + count). Not thread-safe.
  void Prepare(uint32_t first, uint32_t count);

  // Turns `heads` vectors, `stride` floats apart, at position first + index.
  void Rotate(uint32_t index, uint32_t heads, size_t stride, float* vectors) const;

 private:
  const uint32_t half_;
  std::vector<float> frequencies_;  // [half]
  std::vector<float> cos_, sin_;    // [count][half]
};

}  // namespace prefixd::worker
