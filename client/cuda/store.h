// Store: rows of an engine's K or V become a format's bytes on the GPU, and copies of the arena's
// bytes.
//
// Functions, thread-safe.
#pragma once
#include <cuda_runtime_api.h>

#include "absl/status/status.h"

#include "context.h"
#include "kernels.h"
#include "prefixd/cuda.h"

namespace prefixd::cuda {

// What prefixd_cuda_quantize() was asked for, without the tables' addresses on the GPU.
absl::StatusOr<QuantizeArguments> CheckQuantize(const prefixd_cuda_quantize_options& options);
absl::Status Quantize(Context* context, const prefixd_cuda_quantize_options& options,
                      cudaStream_t stream);

absl::Status CopyFromArena(Context* context, void* to, const void* from, uint64_t bytes,
                           cudaStream_t stream);

}  // namespace prefixd::cuda
