// Makes a FastEntry of a FastFormat.
#pragma once
#include "attend_fast.cuh"
#include "attend_fast_table.h"

namespace prefixd::cuda {

template <typename F>
cudaError_t PrepareEntry(uint32_t shared_bytes) {
  return cudaFuncSetAttribute(FastKernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(shared_bytes));
}

template <typename F>
cudaError_t QueueEntry(const AttendArguments& arguments, const FastLaunch& launch,
                       cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(arguments.work.blocks);
  config.blockDim = dim3(launch.warps * 32);
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = arguments.early ? 1 : 0;
  return cudaLaunchKernelEx(&config, FastKernel<F>, arguments, launch.stages, launch.stage_bytes);
}

template <uint32_t kDim, uint32_t kKeyBits, uint32_t kValueBits, uint32_t kGroup, bool kTiledPages,
          Parameters kParameters>
constexpr FastEntry MlxEntry() {
  using F = FastFormat<kDim, kKeyBits, kValueBits, kGroup, kTiledPages, kParameters>;
  return {.dim = kDim,
          .key_codec = kMlxAffine,
          .value_codec = kMlxAffine,
          .key_bits = kKeyBits,
          .value_bits = kValueBits,
          .dtype = kParameters == Parameters::kBf16 ? kBf16 : kF16,
          .layout = kTiledPages ? kTiled : kRows,
          .group = kGroup,
          .prepare = PrepareEntry<F>,
          .queue = QueueEntry<F>};
}

template <uint32_t kDim, uint32_t kKeyBits, uint32_t kValueBits>
constexpr FastEntry GgmlEntry() {
  using F = FastFormat<kDim, kKeyBits, kValueBits, 32, true, Parameters::kGgml>;
  return {.dim = kDim,
          .key_codec = kKeyBits == 8 ? kQ8_0 : kQ4_0,
          .value_codec = kValueBits == 8 ? kQ8_0 : kQ4_0,
          .key_bits = kKeyBits,
          .value_bits = kValueBits,
          .dtype = kF16,
          .layout = kTiled,
          .group = 32,
          .prepare = PrepareEntry<F>,
          .queue = QueueEntry<F>};
}

}  // namespace prefixd::cuda
