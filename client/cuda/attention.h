// Attention: one shape's work list on the GPU, and calls over it.
//
// Belongs to one thread at a time; its calls run one after the other on the GPU.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "attend_arguments.h"
#include "context.h"
#include "prefixd/cuda.h"
#include "work_list.h"

namespace prefixd::cuda {

// Refuses options that are impossible or that no kernel has; else returns their shape.
absl::StatusOr<WorkShape> CheckShape(const prefixd_cuda_attention_options& options);

// Returns how many query rows a call on such a GPU attends on at full speed, whatever query_rows of
// the options is. Refuses what CheckShape() refuses.
absl::StatusOr<uint32_t> QuickRows(const prefixd_cuda_facts& facts,
                                   const prefixd_cuda_attention_options& options);

class Attention {
 public:
  static absl::StatusOr<std::unique_ptr<Attention>> New(
      Context* context, const prefixd_cuda_attention_options& options);
  Attention(Context* context, const prefixd_cuda_attention_options& options, WorkShape shape);
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;
  // Waits for the GPU.
  ~Attention();

  absl::Status Set(const prefixd_cuda_sequence* sequences, uint32_t count, cudaStream_t stream);
  absl::Status Attend(uint32_t layer, const prefixd_cuda_heads& queries,
                      const prefixd_cuda_heads& results, const float* sink_logits,
                      cudaStream_t stream) const;

 private:
  // Device memory that only grows.
  struct Buffer {
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };
  absl::Status Grow(Buffer* buffer, size_t bytes, bool zero, cudaStream_t stream);
  // Makes it the prefill kernel's, with another attention for what f16 cannot hold.
  absl::Status TakePrefill();
  absl::Status PlanLaunches(uint32_t most_page_tokens);
  bool HasTiles(const DevicePage& page) const;
  void ChooseLaunches(const prefixd_cuda_sequence* sequences, uint32_t count);
  absl::StatusOr<HeadsPlace> HeadsOf(const prefixd_cuda_heads& heads, uint32_t dim,
                                     const char* what) const;
  absl::Status Fill(const WorkList& list, const std::vector<uint32_t>& tile_pages,
                    cudaStream_t stream);
  absl::Status QueueManyRows(AttendArguments* arguments, cudaStream_t stream) const;
  absl::Status QueueKernels(const AttendArguments& arguments, cudaStream_t stream) const;

  Context* const context_;
  const prefixd_cuda_attention_options options_;
  WorkShape shape_;
  // Kernel 0 is the generic one; kernel k > 0 is the fast one of format fast_formats_[k - 1].
  std::vector<uint32_t> fast_formats_;
  std::vector<FastLaunch> two_, one_;  // of each fast kernel: two blocks of a processor, or one
  std::vector<FastLaunch> launches_;   // which of them the work list was cut for
  std::vector<WorkGrid> grids_;
  uint32_t planned_page_tokens_ = 0;

  bool prefill_ = false;  // one kernel has all formats
  uint32_t prefill_dim_ = 0;
  size_t tile_bytes_ = 0;             // that a call needs for tiles
  std::unique_ptr<Attention> exact_;  // of the same calls; does nothing unless unfit_ is set

  Buffer lists_, sums_, weights_, arrived_, unfit_;
  std::vector<WorkShare> shares_;  // of each kernel; no items: not launched
  AttendArguments arguments_;
  uint32_t sequences_ = 0;
};

}  // namespace prefixd::cuda

struct prefixd_cuda_attention {
  std::unique_ptr<prefixd::cuda::Attention> attention;
};
