// The CPU as a device: OpenBLAS for products, plain loops between them. It is the reference for
// every other device.
//
// Calls are computed at once. One thread at a time.
#pragma once
#include <span>

#include "client/worker/device.h"

namespace prefixd::worker {

class HostDevice : public Device {
 public:
  // `threads`: for products, of the whole process.
  explicit HostDevice(uint32_t threads);

  const DeviceFacts& facts() const override { return facts_; }
  bool uses_host_memory() const override { return true; }
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
  PagedAttention* paged_attention() override { return nullptr; }

 private:
  const DeviceFacts facts_{.kind = "cpu", .name = "", .products = "OpenBLAS"};
  Status failed_;  // since the last Finish()
};

}  // namespace prefixd::worker
