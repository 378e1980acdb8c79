// The formats that have a fast kernel, and their entry points. Internal to client/cuda.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "attend_arguments.h"

namespace prefixd::cuda {

struct FastEntry {
  uint32_t dim = 0;
  uint8_t key_codec = 0, value_codec = 0;
  uint8_t key_bits = 0, value_bits = 0;
  uint8_t dtype = 0, layout = 0;
  uint16_t group = 0;
  cudaError_t (*prepare)(uint32_t shared_bytes) = nullptr;
  cudaError_t (*queue)(const AttendArguments& arguments, const FastLaunch& launch,
                       cudaStream_t stream) = nullptr;
};

// One for each attend_fast_*.cu.
std::span<const FastEntry> FastMlxTiled();
std::span<const FastEntry> FastMlxRows();
std::span<const FastEntry> FastGgml();

}  // namespace prefixd::cuda
