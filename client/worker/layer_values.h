// What the calls of a Device take. Plain values, which kernels include too.
#pragma once
#include <cstddef>
#include <cstdint>

namespace prefixd::worker {

// The shape of all kGatedDelta layers.
struct DeltaShape {
  uint32_t key_heads = 0;
  uint32_t value_heads = 0;  // a multiple of key_heads
  uint32_t key_dim = 0;
  uint32_t value_dim = 0;
  uint32_t convolution = 0;  // tokens that a channel's convolution sees, including its own

  uint32_t keys() const { return key_heads * key_dim; }
  uint32_t values() const { return value_heads * value_dim; }
  uint32_t channels() const { return 2 * keys() + values(); }  // channels that are convolved
};

enum class Activation : uint8_t { kSilu, kGeluTanh };

// `rows` times `heads` vectors; strides in floats.
struct Vectors {
  float* data = nullptr;
  uint32_t rows = 1;
  size_t row_stride = 0;
  uint32_t heads = 1;
  size_t head_stride = 0;

  float* at(size_t row, size_t head) const { return data + row * row_stride + head * head_stride; }
};

// Weights on the device.
struct PlacedMatrix {
  const float* values = nullptr;  // [rows, cols]
  uint32_t rows = 0, cols = 0;
};
struct PlacedNorm {
  const float* weight = nullptr;  // [width]; null: there is no such norm
  uint32_t width = 0;
};
struct PlacedDelta {  // see DeltaWeights
  const float* convolution = nullptr;
  const float* forget_rates = nullptr;
  const float* step_biases = nullptr;
  const float* norm = nullptr;
};

// Tokens of a kGatedDelta layer, one after the other. Row i of `projections` is token i's, as
// DeltaRow has it; its result is row i of `out`, [values].
struct DeltaCall {
  DeltaShape shape;
  PlacedDelta weights;
  float norm_epsilon = 0;
  uint32_t tokens = 0;
  const float* projections = nullptr;
  size_t projections_stride = 0;
  float* state = nullptr;  // before the first token, then after the last
  float* out = nullptr;
};

}  // namespace prefixd::worker
