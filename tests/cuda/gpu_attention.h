// A prepared case on the GPU: its pages in device memory or in a pinned arena, and the attention
// that reads them.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "prefixd/cuda.h"
#include "tests/cuda/attend_case.h"

namespace prefixd::cuda {

// The pages of a case's sequences, one behind the other. Each has two layers: the first is noise,
// the second the case's. Padding and slots without a token are NaN in any format.
struct CasePages {
  std::vector<std::byte> bytes;
  std::vector<std::vector<prefixd_block>> blocks;  // arena_offset: in `bytes`
};
CasePages LayOut(const PreparedCase& it);

// An attention of one shape. Failures are the test's.
class GpuAttention {
 public:
  explicit GpuAttention(const AttendCase& shape);
  GpuAttention(const GpuAttention&) = delete;
  GpuAttention& operator=(const GpuAttention&) = delete;
  ~GpuAttention();

  // Sets the case's sequences; their pages are at `memory`, which lasts longer.
  void Set(const PreparedCase& it, const std::byte* memory, CasePages pages);
  // Copies the pages to device memory that lasts as long as this, then sets them.
  void Set(const PreparedCase& it);
  // Returns the results of the sequences that were set last.
  std::vector<float> Attend(const PreparedCase& it);
  // Captures the call in a CUDA graph. Returns the results of its first and its second launch.
  std::vector<std::vector<float>> AttendInGraph(const PreparedCase& it);

 private:
  struct Heads;
  void Queue(const Heads& heads);

  prefixd_cuda_attention* attention_ = nullptr;
  std::vector<std::unique_ptr<DeviceBytes>> pages_;  // of every Set()
  cudaStream_t stream_ = nullptr;
};

// Returns the GPU's result, which it computes twice and expects to have the same bits. Calls
// `meanwhile` after the sequences are set and before the attention.
std::vector<float> AttendOnGpu(
    const PreparedCase& it, const std::function<void()>& meanwhile = [] {});
// Does the same with the pages in an arena that is pinned.
std::vector<float> AttendOnArena(const PreparedCase& it);

}  // namespace prefixd::cuda
