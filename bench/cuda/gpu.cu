// Timing, random numbers and the plain read that others are compared with.
#include <cuda_bf16.h>

#include <chrono>

#include "gpu.h"

namespace prefixd::bench {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

__device__ uint32_t Mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(x >> 32);
}

__global__ void NormalKernel(__nv_bfloat16* to, size_t count, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const float u = (Mixed(i * 2 + seed * 0x9e3779b97f4a7c15ull) + 1.0f) * 0x1p-32f;
    const float v = Mixed(i * 2 + 1 + seed * 0x9e3779b97f4a7c15ull) * 0x1p-32f;
    to[i] = __float2bfloat16(sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}

// Each thread keeps eight loads on their way.
__global__ void __launch_bounds__(512) ReadKernel(const uint4* from, size_t count, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count; i += 8 * stride) {
    uint4 word[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      word[k] = i + k * stride < count ? __ldcs(from + i + k * stride) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) sum ^= word[k].x ^ word[k].y ^ word[k].z ^ word[k].w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

// Keeps the stream busy while the CPU queues what is measured.
__global__ void WaitKernel(long long nanoseconds) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}
constexpr long long kQueueNanoseconds = 2'000'000;

}  // namespace

double MillisecondsOf(cudaStream_t stream, int samples, const std::function<void()>& queue) {
  cudaEvent_t begin, end;
  Must(cudaEventCreate(&begin), "event");
  Must(cudaEventCreate(&end), "event");
  std::vector<double> values;
  for (int i = -2; i < samples; ++i) {
    WaitKernel<<<1, 1, 0, stream>>>(kQueueNanoseconds);
    Must(cudaEventRecord(begin, stream), "event");
    queue();
    Must(cudaEventRecord(end, stream), "event");
    Must(cudaEventSynchronize(end), "what is timed");
    float ms = 0;
    Must(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 0) values.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return Median(values);
}

double GraphMillisecondsOf(cudaStream_t stream, int samples, int calls,
                           const std::function<void()>& queue) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  queue();
  Must(cudaStreamEndCapture(stream, &graph), "capture");
  Must(cudaGraphInstantiate(&executable, graph, 0), "graph");
  const double ms =
      MillisecondsOf(stream, samples, [&] { Must(cudaGraphLaunch(executable, stream), "graph"); });
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return ms / calls;
}

double WallMillisecondsOf(int samples, const std::function<void()>& work) {
  std::vector<double> values;
  for (int i = -2; i < samples; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (i >= 0) values.push_back(took.count());
  }
  return Median(values);
}

void Bench::Add(const Figure& figure) {
  figures.push_back(figure);
  std::fprintf(stderr, "%-10s %-58s %10.3f %-6s", figure.workload.c_str(), figure.name.c_str(),
               figure.value, figure.unit.c_str());
  if (figure.target != 0) {
    std::fprintf(stderr, " %s %.3g: %s", figure.most ? "at most" : "at least", figure.target,
                 figure.missed() ? "MISSED" : "good");
  }
  std::fprintf(stderr, "\n");
}

DeviceMemory RandomElements(size_t count, uint32_t seed, cudaStream_t stream) {
  DeviceMemory memory = Allocate(count * 2);
  NormalKernel<<<1024, 256, 0, stream>>>(reinterpret_cast<__nv_bfloat16*>(memory.get()), count,
                                         seed);
  Must(cudaStreamSynchronize(stream), "random elements");
  return memory;
}

double ReadRate(Bench& bench, size_t bytes) {
  const DeviceMemory memory = Allocate(bytes);
  const DeviceMemory sink = Allocate(256);
  Must(cudaMemset(memory.get(), 1, bytes), "memory");
  const double ms = MillisecondsOf(bench.stream, bench.quick ? 10 : 30, [&] {
    ReadKernel<<<132 * 4, 512, 0, bench.stream>>>(reinterpret_cast<const uint4*>(memory.get()),
                                                  bytes / 16,
                                                  reinterpret_cast<uint32_t*>(sink.get()));
  });
  return static_cast<double>(bytes) / ms / 1e6;
}

double CopyRate(Bench& bench, size_t bytes) {
  const DeviceMemory from = Allocate(bytes), to = Allocate(bytes);
  Must(cudaMemset(from.get(), 1, bytes), "memory");
  const double ms = MillisecondsOf(bench.stream, bench.quick ? 10 : 30, [&] {
    Must(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, bench.stream),
         "copy");
  });
  return 2.0 * static_cast<double>(bytes) / ms / 1e6;
}

}  // namespace prefixd::bench
