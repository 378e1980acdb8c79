// Rotary position embedding as Hugging Face pairs it: channel i turns with channel i + dim / 2.
//
// Angles are made in float32, as the reference does: at position 8,000 a double would differ from
// it in the fourth digit of the fastest channel.
#pragma once
#include <cstdint>
#include <vector>

namespace prefixd::worker {

class Rope {
 public:
  // Requires: dim is even.
  Rope(uint32_t dim, double theta);

  // Makes Rotate() ready for positions [first, first + count). Not thread-safe.
  void Prepare(uint32_t first, uint32_t count);

  // Turns `heads` vectors of `dim` floats each, dense, which stand at position first + index.
  void Rotate(uint32_t index, uint32_t heads, float* vectors) const;

 private:
  const uint32_t half_;
  std::vector<float> frequencies_;  // [half]
  std::vector<float> cos_, sin_;    // [count][half]
};

}  // namespace prefixd::worker
