// The kernels between a decoder's matrix products: what client/worker/host_device.cc computes, in
// float32, within rounding of it.
//
// Each queues one kernel on `stream` and returns what the launch said. Pointers are of the device;
// strides count floats. Results have the same bits for the same arguments.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "client/worker/layer_values.h"

namespace prefixd::worker::cuda {

cudaError_t QueueNormalize(const PlacedNorm& norm, float epsilon, const Vectors& in,
                           const Vectors& out, cudaStream_t stream);
cudaError_t QueueAddBias(const float* bias, uint32_t width, const Vectors& rows,
                         cudaStream_t stream);
cudaError_t QueueAdd(const float* from, float* to, size_t floats, cudaStream_t stream);
cudaError_t QueueTurnByPosition(const float* cos, const float* sin, uint32_t half,
                                const Vectors& vectors, cudaStream_t stream);
// Requires: `run` is a power of two that divides dim, dim <= 1024.
cudaError_t QueueTurnHadamard(uint32_t dim, uint32_t run, const Vectors& vectors,
                              cudaStream_t stream);
cudaError_t QueueGate(Activation activation, uint32_t width, uint32_t rows, const float* gate_up,
                      float* out, cudaStream_t stream);
cudaError_t QueueMultiplyBySigmoid(const float* gates, size_t gate_stride, uint32_t width,
                                   const Vectors& rows, cudaStream_t stream);
// Two kernels. `mixed`: scratch of [tokens, channels]. cudaErrorInvalidValue if the heads are wider
// than a thread block has shared memory for.
cudaError_t QueueDelta(const DeltaCall& call, float* mixed, cudaStream_t stream);

}  // namespace prefixd::worker::cuda
