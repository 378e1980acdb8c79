// An NVIDIA GPU as a device: cuBLAS for products, kernels.h between them, libprefixd_cuda for pages
// and attention. Everything runs on one stream.
//
// One thread at a time.
#pragma once
#include <cuda_runtime_api.h>

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "client/worker/device.h"
#include "client/worker_cuda/cublas.h"
#include "client/worker_cuda/paged_attention.h"
#include "prefixd/cuda.h"

namespace prefixd::worker::cuda {

class CudaDevice final : public Device {
 public:
  // Returns null and says why in `why`: no driver, no GPU of that number, no cuBLAS.
  static std::unique_ptr<CudaDevice> Open(int32_t gpu, std::string* why);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const DeviceFacts& facts() const override { return facts_; }
  bool uses_host_memory() const override { return false; }
  float* Allocate(size_t floats) override;
  void Free(float* memory) override;
  void Write(std::span<const float> from, float* to) override;
  void Clear(float* data, size_t floats) override;
  void CopyRows(const float* from, size_t stride, uint32_t width, uint32_t rows,
                float* to) override;
  Status Read(const float* from, std::span<float> to) override;
  Status Finish() override;
  void Multiply(const PlacedMatrix& matrix, uint32_t count, const float* in, float* out) override;
  void Normalize(const PlacedNorm& norm, float epsilon, const Vectors& in,
                 const Vectors& out) override;
  void AddBias(const float* bias, uint32_t width, const Vectors& rows) override;
  void Add(const float* from, float* to, size_t floats) override;
  void TurnByPosition(const float* cos, const float* sin, uint32_t half,
                      const Vectors& vectors) override;
  void TurnHadamard(uint32_t dim, const Vectors& vectors) override;
  void Gate(Activation activation, uint32_t width, uint32_t rows, const float* gate_up,
            float* out) override;
  void MultiplyBySigmoid(const float* gates, size_t gate_stride, uint32_t width,
                         const Vectors& rows) override;
  void Delta(const DeltaCall& call) override;
  PagedAttention* paged_attention() override { return &*pages_; }

 private:
  CudaDevice() = default;
  void Note(cudaError_t error, const char* what);  // keeps the first failure

  prefixd_cuda* context_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Cublas> cublas_;
  std::optional<CudaPagedAttention> pages_;
  DeviceFacts facts_;
  std::string failed_;      // since the last Finish() or Read()
  float* mixed_ = nullptr;  // scratch of Delta()
  size_t mixed_floats_ = 0;
};

}  // namespace prefixd::worker::cuda
