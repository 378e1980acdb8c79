// A decoder's weights where a device reads them: the host's own on the CPU, copies on a GPU. Layers
// that share a matrix share its copy.
//
// Plain values, which never change.
#pragma once
#include <cstdint>
#include <vector>

#include "client/worker/device.h"
#include "client/worker/weights.h"

namespace prefixd::worker {

struct PlacedLayer {  // see LayerWeights
  PlacedNorm attention_norm, mlp_norm, attention_out_norm, mlp_out_norm, query_norm, key_norm;
  PlacedMatrix qkv, attention_out, gate_up, down;
  const float* qkv_bias = nullptr;  // null: there is none
  uint32_t qkv_bias_width = 0;
  PlacedMatrix delta_projections, delta_out;
  PlacedDelta delta;
};

struct PlacedWeights {
  bool ok = true;      // false: the device has no room for them
  uint64_t bytes = 0;  // of copies
  std::vector<PlacedLayer> layers;
  PlacedNorm final_norm;
  PlacedMatrix head;
  std::vector<DeviceFloats> memory;  // of the copies
};

// Where device.uses_host_memory(), `weights` must outlive the result.
PlacedWeights Place(const Weights& weights, Device& device);

}  // namespace prefixd::worker
