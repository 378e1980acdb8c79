#include "client/worker_cuda/cuda_device.h"

#include <utility>

#include "client/worker_cuda/kernels.h"

namespace prefixd::worker::cuda {

std::unique_ptr<CudaDevice> CudaDevice::Open(int32_t gpu, std::string* why) {
  std::unique_ptr<CudaDevice> device(new CudaDevice);
  prefixd_cuda_options options = PREFIXD_INIT(prefixd_cuda_options);
  options.device = gpu;
  device->context_ = prefixd_cuda_open(&options);
  prefixd_cuda_facts facts = PREFIXD_INIT(prefixd_cuda_facts);
  if (device->context_ == nullptr ||
      prefixd_cuda_describe(device->context_, &facts) != PREFIXD_OK) {
    *why = prefixd_cuda_last_error();
    return nullptr;
  }
  // The runtime of this library is another one than libprefixd_cuda's: it has a current GPU too.
  cudaError_t error = cudaSetDevice(gpu);
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking);
  }
  if (error != cudaSuccess) {
    *why = std::string("a stream: ") + cudaGetErrorString(error);
    return nullptr;
  }
  device->cublas_ = Cublas::Open(device->stream_, why);
  if (device->cublas_ == nullptr) return nullptr;
  device->pages_.emplace(device->context_, device->stream_, &device->failed_);
  device->facts_ = {.kind = "cuda", .name = facts.name, .products = device->cublas_->version()};
  return device;
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  pages_.reset();
  cublas_.reset();
  cudaFree(mixed_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  prefixd_cuda_close(context_);
}

void CudaDevice::Note(cudaError_t error, const char* what) {
  if (error == cudaSuccess || !failed_.empty()) return;
  failed_ = std::string(what) + ": " + cudaGetErrorString(error);
}

float* CudaDevice::Allocate(size_t floats) {
  void* memory = nullptr;
  if (cudaMalloc(&memory, floats * sizeof(float)) != cudaSuccess) {
    cudaGetLastError();  // the caller says it
    return nullptr;
  }
  Clear(static_cast<float*>(memory), floats);
  return static_cast<float*>(memory);
}

void CudaDevice::Free(float* memory) {
  if (memory != nullptr) cudaFree(memory);  // waits for the GPU
}

void CudaDevice::Write(std::span<const float> from, float* to) {
  Note(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream_),
       "copy to the GPU");
}

void CudaDevice::Clear(float* data, size_t floats) {
  Note(cudaMemsetAsync(data, 0, floats * sizeof(float), stream_), "clear");
}

void CudaDevice::CopyRows(const float* from, size_t stride, uint32_t width, uint32_t rows,
                          float* to) {
  const size_t bytes = width * sizeof(float);
  Note(cudaMemcpy2DAsync(to, bytes, from, stride * sizeof(float), bytes, rows,
                         cudaMemcpyDeviceToDevice, stream_),
       "copy of rows");
}

Status CudaDevice::Read(const float* from, std::span<float> to) {
  Note(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream_),
       "copy from the GPU");
  return Finish();
}

Status CudaDevice::Finish() {
  pages_->EndLoads();
  Note(cudaStreamSynchronize(stream_), "the GPU");
  if (failed_.empty()) return {};
  return {.code = StatusCode::kInternal, .message = std::exchange(failed_, {})};
}

void CudaDevice::Multiply(const PlacedMatrix& matrix, uint32_t count, const float* in, float* out) {
  const std::string error =
      cublas_->Multiply(matrix.values, matrix.rows, matrix.cols, count, in, out);
  if (failed_.empty()) failed_ = error;
}

void CudaDevice::Normalize(const PlacedNorm& norm, float epsilon, const Vectors& in,
                           const Vectors& out) {
  Note(QueueNormalize(norm, epsilon, in, out, stream_), "norm");
}

void CudaDevice::AddBias(const float* bias, uint32_t width, const Vectors& rows) {
  Note(QueueAddBias(bias, width, rows, stream_), "bias");
}

void CudaDevice::Add(const float* from, float* to, size_t floats) {
  Note(QueueAdd(from, to, floats, stream_), "sum");
}

void CudaDevice::TurnByPosition(const float* cos, const float* sin, uint32_t half,
                                const Vectors& vectors) {
  Note(QueueTurnByPosition(cos, sin, half, vectors, stream_), "RoPE");
}

void CudaDevice::TurnHadamard(uint32_t dim, const Vectors& vectors) {
  const uint32_t run = dim & (~dim + 1);  // the largest power of two that divides it
  Note(QueueTurnHadamard(dim, run, vectors, stream_), "rotation");
}

void CudaDevice::Gate(Activation activation, uint32_t width, uint32_t rows, const float* gate_up,
                      float* out) {
  Note(QueueGate(activation, width, rows, gate_up, out, stream_), "gate");
}

void CudaDevice::MultiplyBySigmoid(const float* gates, size_t gate_stride, uint32_t width,
                                   const Vectors& rows) {
  Note(QueueMultiplyBySigmoid(gates, gate_stride, width, rows, stream_), "attention's gate");
}

void CudaDevice::Delta(const DeltaCall& call) {
  const size_t floats = size_t{call.tokens} * call.shape.channels();
  if (floats > mixed_floats_) {
    Free(mixed_);
    mixed_ = Allocate(floats);
    mixed_floats_ = mixed_ != nullptr ? floats : 0;
  }
  if (mixed_ == nullptr) return Note(cudaErrorMemoryAllocation, "delta rule");
  Note(QueueDelta(call, mixed_, stream_), "delta rule");
}

}  // namespace prefixd::worker::cuda
