// What the tests of client/cuda share: formats as C structs, random numbers, the GPU or the reason
// to skip, and device memory.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "prefixd/cuda.h"
#include "quant/format.h"

namespace prefixd::cuda {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

inline prefixd_tensor_format CFormat(const quant::TensorFormat& format) {
  prefixd_tensor_format c = {};
  c.codec = static_cast<uint8_t>(format.codec);
  c.dtype = static_cast<uint8_t>(format.dtype);
  c.bits = format.bits;
  c.layout = static_cast<uint8_t>(format.layout);
  c.group_size = format.group_size;
  return c;
}
inline prefixd_format CFormat(const quant::KvFormat& format) {
  return {CFormat(format.key), CFormat(format.value)};
}

// Seeded random numbers.
class Draw {
 public:
  explicit Draw(uint32_t seed) : engine_(seed) {}
  // [0, end)
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>(engine_() % end); }
  uint32_t From(uint32_t begin, uint32_t end) { return begin + Below(end - begin); }
  bool Once(uint32_t in) { return Below(in) == 0; }
  template <typename T>
  T OneOf(std::initializer_list<T> from) {
    return from.begin()[Below(static_cast<uint32_t>(from.size()))];
  }

 private:
  std::mt19937 engine_;
};

// The GPU of the tests, opened once; null where there is none.
inline prefixd_cuda* Gpu() {
  static prefixd_cuda* const gpu = prefixd_cuda_open(nullptr);
  return gpu;
}
inline std::string WhyNoGpu() {
  Gpu();
  prefixd_cuda* again = prefixd_cuda_open(nullptr);
  const std::string why = prefixd_cuda_last_error();
  prefixd_cuda_close(again);
  return why;
}
#define SKIP_WITHOUT_GPU() \
  if (::prefixd::cuda::Gpu() == nullptr) GTEST_SKIP() << ::prefixd::cuda::WhyNoGpu()

// Device memory that holds a copy of host bytes.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t bytes) : bytes_(bytes) {
    EXPECT_EQ(cudaMalloc(&memory_, bytes + 256), cudaSuccess);
    EXPECT_EQ(cudaMemset(memory_, 0xA5, bytes + 256), cudaSuccess);
    Arrive();
  }
  template <typename T>
  explicit DeviceBytes(const std::vector<T>& from) : DeviceBytes(from.size() * sizeof(T)) {
    EXPECT_EQ(cudaMemcpy(memory_, from.data(), bytes_, cudaMemcpyHostToDevice), cudaSuccess);
    Arrive();
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(memory_); }

  void* data() const { return memory_; }
  std::byte* at(size_t offset) const { return static_cast<std::byte*>(memory_) + offset; }
  template <typename T>
  std::vector<T> Read() const {
    std::vector<T> to(bytes_ / sizeof(T));
    EXPECT_EQ(cudaMemcpy(to.data(), memory_, to.size() * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return to;
  }

 private:
  // Streams that do not wait for the default one may use the memory next.
  static void Arrive() { EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess); }

  size_t bytes_;
  void* memory_ = nullptr;
};

}  // namespace prefixd::cuda
