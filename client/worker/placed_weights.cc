#include "client/worker/placed_weights.h"

#include <map>
#include <span>

namespace prefixd::worker {
namespace {

class Placer {
 public:
  Placer(Device& device, PlacedWeights* to) : device_(device), to_(*to) {}

  const float* Floats(std::span<const float> from) {
    if (from.empty() || device_.uses_host_memory()) return from.data();
    const float*& copy = copies_[from.data()];
    if (copy != nullptr) return copy;
    DeviceFloats memory(device_, from.size());
    if (!memory.ok()) {
      to_.ok = false;
      return nullptr;
    }
    device_.Write(from, memory.data());
    copy = memory.data();
    to_.bytes += from.size_bytes();
    to_.memory.push_back(std::move(memory));
    return copy;
  }
  PlacedNorm Norm(const std::vector<float>& norm) {
    if (norm.empty()) return {};
    return {.weight = Floats(norm), .width = static_cast<uint32_t>(norm.size())};
  }
  PlacedMatrix Of(const SharedMatrix& matrix) {
    if (matrix == nullptr) return {};
    return {.values = Floats(matrix->values.span()), .rows = matrix->rows, .cols = matrix->cols};
  }
  PlacedLayer Layer(const LayerWeights& layer) {
    return {.attention_norm = Norm(layer.attention_norm),
            .mlp_norm = Norm(layer.mlp_norm),
            .attention_out_norm = Norm(layer.attention_out_norm),
            .mlp_out_norm = Norm(layer.mlp_out_norm),
            .query_norm = Norm(layer.query_norm),
            .key_norm = Norm(layer.key_norm),
            .qkv = Of(layer.qkv),
            .attention_out = Of(layer.attention_out),
            .gate_up = Of(layer.gate_up),
            .down = Of(layer.down),
            .qkv_bias = layer.qkv_bias.empty() ? nullptr : Floats(layer.qkv_bias),
            .qkv_bias_width = static_cast<uint32_t>(layer.qkv_bias.size()),
            .delta_projections = Of(layer.delta.projections),
            .delta_out = Of(layer.delta.out),
            .delta = {.convolution = Floats(layer.delta.convolution),
                      .forget_rates = Floats(layer.delta.forget_rates),
                      .step_biases = Floats(layer.delta.step_biases),
                      .norm = Floats(layer.delta.norm)}};
  }

 private:
  Device& device_;
  PlacedWeights& to_;
  std::map<const float*, const float*> copies_;  // by the host's address
};

}  // namespace

PlacedWeights Place(const Weights& weights, Device& device) {
  PlacedWeights placed;
  Placer placer(device, &placed);
  for (const LayerWeights& layer : weights.layers) placed.layers.push_back(placer.Layer(layer));
  placed.final_norm = placer.Norm(weights.final_norm);
  placed.head = placer.Of(weights.head.rows);
  return placed;
}

}  // namespace prefixd::worker
