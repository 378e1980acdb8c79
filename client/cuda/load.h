// Load: pages of a lease on their way to the GPU, layer by layer, with an event for each layer.
//
// Belongs to one thread at a time. Pinned pages are read by a kernel where they lie; others are
// copied into a bounce buffer by threads first. While a layer is expanded into an engine's tensors,
// the next one travels.
#pragma once
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "context.h"
#include "geometry.h"
#include "kernels.h"
#include "prefixd/cuda.h"

namespace prefixd::cuda {

// What a layer's load was found to be. Pointers of the caller are read before Begin() returns.
struct LoadLayer {
  const prefixd_block* blocks = nullptr;
  size_t block_count = 0;
  uint32_t kv_heads = 0;
  std::vector<PairGeometry> formats = {};
  TensorPlace key = {}, value = {};
  void* const* pages = nullptr;  // null: expand, unless `resident` is given
  const prefixd_cuda_page_name* names = nullptr;
  const void** resident = nullptr;
  bool expands() const { return pages == nullptr && resident == nullptr; }
};

// Checks a layer of the options; `begin` and `count` are the tokens to expand.
absl::StatusOr<LoadLayer> CheckLayer(const prefixd_cuda_load_layer& layer,
                                     const prefixd_cuda_load_options& options);

// The blocks of a layer that hold tokens [begin, end), as parts without addresses of the GPU's.
struct WantedBlock {
  size_t block = 0;
  uint32_t first_slot = 0, count = 0, token = 0;
};
std::vector<WantedBlock> WantedBlocks(const prefixd_block* blocks, size_t count, uint64_t begin,
                                      uint64_t end);

class Load {
 public:
  static absl::StatusOr<std::unique_ptr<Load>> Begin(Context* context,
                                                     const prefixd_cuda_load_options& options);
  explicit Load(Context* context) : context_(context), tier_(context->page_tier()) {}
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  // Waits for what was queued.
  ~Load();

  absl::Status Wait(uint32_t layer, cudaStream_t stream);
  bool Ready(uint32_t layer);
  // The device pages stay in use until what is queued on `stream` now is done.
  absl::Status Keep(cudaStream_t stream);
  absl::Status End(prefixd_cuda_load_counts* out);

 private:
  struct Source {
    const void* from = nullptr;
    void* to = nullptr;
    uint32_t bytes = 0;
    size_t part = 0;  // of the layer's blocks, where they are expanded
    Context::Reach reach = Context::Reach::kNotPinned;
  };

  absl::Status Queue(const prefixd_cuda_load_options& options, std::vector<LoadLayer> layers);
  absl::Status QueueLayer(const LoadLayer& layer, const prefixd_cuda_load_options& options);
  // Where a block is or will be in device pages; null if it is not kept. A new page is a source of
  // its own.
  absl::StatusOr<const std::byte*> KeptAt(const LoadLayer& layer, const Source& source,
                                          size_t block, std::vector<Source>* sources);
  absl::Status Publish(size_t first);
  void ReleasePages();
  absl::Status Expand(const LoadLayer& layer, const std::vector<BlockPart>& parts);
  absl::Status RecordLayer(cudaStream_t stream);
  absl::Status Gather(const std::vector<Source>& sources);
  absl::Status GatherPinned(const std::vector<Piece>& pieces);
  absl::Status GatherBounced(const std::vector<Source>& sources);
  // Returns memory for the pages of the layer that is expanded next. stream_ waits until the layer
  // whose pages were there is expanded.
  absl::StatusOr<std::byte*> Scratch(size_t bytes);

  Context* const context_;
  cudaStream_t stream_ = nullptr;    // gathers; waits for all of the load in the end
  std::vector<cudaEvent_t> events_;  // recorded in the order of layers
  size_t recorded_ = 0;
  cudaStream_t expand_stream_ = nullptr;   // null: no layer is expanded
  cudaEvent_t gathered_ = nullptr;         // the pages of the layer that is expanded next
  cudaEvent_t last_expansion_ = nullptr;   // of events_; null: none
  std::byte* scratch_ = nullptr;           // two halves, which layers take in turns
  size_t half_bytes_ = 0;                  // of each
  size_t half_ = 0;                        // of the layer that is queued
  std::array<cudaEvent_t, 2> expanded_{};  // of events_: the layer that was in each half last
  Chunk* table_ = nullptr;                 // the engine's blocks
  prefixd_cuda_load_counts counts_ = {};
  PageTier* const tier_;           // null: there are no device pages
  std::vector<KeptPage*> held_;    // one reference to each
  std::vector<KeptPage*> filled_;  // of these, those that this load brings
  Fence last_fence_ = nullptr;     // that stream_ waits for already
  std::vector<Fence> readers_;     // events of Keep()
};

}  // namespace prefixd::cuda

struct prefixd_cuda_load {
  std::unique_ptr<prefixd::cuda::Load> load;
};
