// The gated delta rule of Qwen3-Next's linear layers, computed in float32, token by token: a short
// convolution over q, k and v, then for each value head a matrix that forgets, is corrected and is
// read.
//
// Pure functions of their arguments. A token's result depends only on its row and the state before
// it, so prefill and decoding are the same arithmetic.
#pragma once
#include <cstddef>
#include <vector>

#include "client/worker/device.h"
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

// Offsets of the parts of a token's projections, in floats.
struct DeltaRow {
  explicit DeltaRow(const DeltaShape& shape)
      : z(shape.channels()),
        b(z + shape.values()),
        a(b + shape.value_heads),
        floats(a + shape.value_heads) {}
  const size_t z, b, a;  // q, k and v, the channels that are convolved, begin at 0
  const size_t floats;
};

// Returns the number of floats in a layer's state: the channels of the last convolution - 1 tokens,
// the oldest first, then [value_heads][value_dim][key_dim]. All are zero before the first token.
size_t DeltaStateFloats(const DeltaShape& shape);

// Adds one token to `state`. `row` holds the token's projections; `out` is [values].
void DeltaStep(const DeltaShape& shape, const PlacedDelta& weights, float norm_epsilon,
               const float* row, float* state, float* out);

}  // namespace prefixd::worker
