// The gated delta rule of Qwen3-Next's linear layers: a short convolution over q, k and v, then a
// matrix for each value head that forgets, corrects and is read, token by token, in float32.
//
// Pure functions of their arguments: a token's result depends on the state before it and its row
// alone, so that prefill and decoding are the same arithmetic.
#pragma once
#include <cstddef>
#include <vector>

#include "client/worker/matrix.h"
#include "client/worker/model_config.h"

namespace prefixd::worker {

struct DeltaWeights {
  SharedMatrix projections;         // rows q | k | v | z | b | a, see DeltaRow
  std::vector<float> convolution;   // [channels][convolution], the oldest token first
  std::vector<float> forget_rates;  // [value_heads]: exp(A_log)
  std::vector<float> step_biases;   // [value_heads]
  std::vector<float> norm;          // [value_dim]
  SharedMatrix out;                 // [hidden, values]
};

// Where the parts of a token's projections stand, in floats.
struct DeltaRow {
  explicit DeltaRow(const DeltaShape& shape)
      : z(shape.channels()),
        b(z + shape.values()),
        a(b + shape.value_heads),
        floats(a + shape.value_heads) {}
  const size_t z, b, a;  // q, k and v, the channels that are convolved, begin at 0
  const size_t floats;
};

// A layer's state: the last convolution - 1 tokens' channels, the oldest first, then
// [value_heads][value_dim][key_dim]. All zeros before the first token.
size_t DeltaStateFloats(const DeltaShape& shape);

// Takes one token in. `row`: its projections; `state` is changed; out: [values].
void DeltaStep(const DeltaShape& shape, const DeltaWeights& weights, float norm_epsilon,
               const float* row, float* state, float* out);

}  // namespace prefixd::worker
