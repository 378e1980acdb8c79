#include "client/worker/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "client/worker/layer_math.h"

namespace prefixd::worker {
namespace {

constexpr float kNormEpsilon = 1e-6F;  // for the norms of q and k

// Convolves the token's channels with those of the tokens before it, which `history` holds. Moves
// `history` up by one token.
void Convolve(const DeltaShape& shape, const PlacedDelta& weights, const float* row, float* history,
              float* out) {
  const size_t channels = shape.channels(), before = shape.convolution - 1;
  for (size_t c = 0; c < channels; ++c) {
    const float* taps = weights.convolution + c * shape.convolution;
    float sum = taps[before] * row[c];
    for (size_t i = 0; i < before; ++i) sum += taps[i] * history[i * channels + c];
    out[c] = Silu(sum);
  }
  if (before == 0) return;
  std::copy(history + channels, history + before * channels, history);
  std::copy_n(row, channels, history + (before - 1) * channels);
}

// Scales `vector` to length `scale`.
void Normalize(std::span<float> vector, float scale) {
  float squares = 0;
  for (const float x : vector) squares += x * x;
  const float factor = scale / std::sqrt(squares + kNormEpsilon);
  for (float& x : vector) x *= factor;
}

struct Head {
  const float* query;
  const float* key;
  const float* value;
  float decay;
  float correction;  // share of the error that is corrected
};

// Updates `memory`, [value_dim][key_dim], by one token and reads the result for its query.
void Recall(const DeltaShape& shape, const Head& head, float* memory, float* out) {
  for (size_t v = 0; v < shape.value_dim; ++v) {
    float* row = memory + v * shape.key_dim;
    float known = 0;
    for (size_t k = 0; k < shape.key_dim; ++k) {
      row[k] *= head.decay;
      known += row[k] * head.key[k];
    }
    const float delta = (head.value[v] - known) * head.correction;
    float read = 0;
    for (size_t k = 0; k < shape.key_dim; ++k) {
      row[k] += head.key[k] * delta;
      read += row[k] * head.query[k];
    }
    out[v] = read;
  }
}

}  // namespace

size_t DeltaStateFloats(const DeltaShape& shape) {
  return size_t{shape.convolution - 1} * shape.channels() +
         size_t{shape.value_heads} * shape.value_dim * shape.key_dim;
}

void DeltaStep(const DeltaShape& shape, const PlacedDelta& weights, float norm_epsilon,
               const float* row, float* state, float* out) {
  const DeltaRow at(shape);
  std::vector<float> mixed(shape.channels());
  Convolve(shape, weights, row, state, mixed.data());
  float* queries = mixed.data();
  float* keys = queries + shape.keys();
  const float* values = keys + shape.keys();
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape.key_dim));
  for (uint32_t head = 0; head < shape.key_heads; ++head) {
    Normalize({queries + size_t{head} * shape.key_dim, shape.key_dim}, scale);
    Normalize({keys + size_t{head} * shape.key_dim, shape.key_dim}, 1);
  }
  float* memory = state + size_t{shape.convolution - 1} * shape.channels();
  const uint32_t sharing = shape.value_heads / shape.key_heads;
  for (uint32_t head = 0; head < shape.value_heads; ++head) {
    const size_t key_at = size_t{head / sharing} * shape.key_dim;
    const float step = Softplus(row[at.a + head] + weights.step_biases[head]);
    float* result = out + size_t{head} * shape.value_dim;
    Recall(shape,
           {.query = queries + key_at,
            .key = keys + key_at,
            .value = values + size_t{head} * shape.value_dim,
            .decay = std::exp(-weights.forget_rates[head] * step),
            .correction = Sigmoid(row[at.b + head])},
           memory + size_t{head} * shape.value_dim * shape.key_dim, result);
    RmsNorm(result, {weights.norm, shape.value_dim}, norm_epsilon, result);
    const float* gates = row + at.z + size_t{head} * shape.value_dim;
    for (size_t i = 0; i < shape.value_dim; ++i) result[i] *= Silu(gates[i]);
  }
}

}  // namespace prefixd::worker
