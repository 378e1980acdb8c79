// What the workloads of prefixd-bench-cuda share: device memory, timing by events and graphs, and
// the figures that they give.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "prefixd/cuda.h"

namespace prefixd::bench {

// Ends the program with the reason: a benchmark that went wrong has no figures.
inline void Must(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "prefixd-bench-cuda: %s\n", what.c_str());
  std::exit(1);
}
inline void Must(cudaError_t error, const char* what) {
  Must(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(error));
}
inline void Must(prefixd_status status) { Must(status == PREFIXD_OK, prefixd_cuda_last_error()); }

struct FreeDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<std::byte, FreeDevice>;
inline DeviceMemory Allocate(size_t bytes) {
  void* memory = nullptr;
  Must(cudaMalloc(&memory, bytes), "device memory");
  return DeviceMemory(static_cast<std::byte*>(memory));
}

// Median milliseconds that the GPU takes for what `queue` queues on a stream, after a warm-up. The
// GPU waits until all of it is queued: the CPU's part does not count.
double MillisecondsOf(cudaStream_t stream, int samples, const std::function<void()>& queue);
// The same for a CUDA graph that `queue` is captured into; of one of its `calls`.
double GraphMillisecondsOf(cudaStream_t stream, int samples, int calls,
                           const std::function<void()>& queue);
// Median wall-clock milliseconds of `work`, which waits for the GPU itself.
double WallMillisecondsOf(int samples, const std::function<void()>& work);

// One line of the output.
struct Figure {
  std::string workload, name;
  double value = 0;
  std::string unit;
  double target = 0;  // 0: none
  bool most = false;  // the target is the most that is good, else the least
  bool missed() const { return target != 0 && (most ? value > target : value < target); }
};

struct Bench {
  prefixd_cuda* cuda = nullptr;
  cudaStream_t stream = nullptr;
  bool quick = false;
  std::vector<Figure> figures;
  void Add(const Figure& figure);
};

// Random bf16 elements of a standard normal distribution, `count` of them.
DeviceMemory RandomElements(size_t count, uint32_t seed, cudaStream_t stream);
// GB/s of a kernel that reads `bytes` with 16-byte loads, and of a device copy (read and written).
double ReadRate(Bench& bench, size_t bytes);
double CopyRate(Bench& bench, size_t bytes);

// Median milliseconds in which the rows of K and V in `blocks` become bf16 tensors.
double ExpandMilliseconds(Bench& bench, const prefixd_format& format, uint32_t kv_heads,
                          uint32_t dim, const std::vector<prefixd_block>& blocks);

void MeasureDecode(Bench& bench);
void MeasurePrefill(Bench& bench);
void MeasureConversion(Bench& bench);
void MeasureLoad(Bench& bench);

}  // namespace prefixd::bench
