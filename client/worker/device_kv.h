// Attention of a model whose device has its own memory: every layer's pages are copied or quantized
// into pages of the device, and attended on there.
//
// A step works on the whole block that it is in: the device attends with a row for each slot, also
// those without a token, over pages whose later slots hold zeros. So the result of a token depends
// on the tokens before it alone, whatever came from the cache and wherever the step begins or ends.
//
// The Sequence gets every K and V too, so that it stores them and knows the format of each block.
// Rows of a layer whose block the device has up to the step are quantized there, and follow at the
// step's end. Otherwise the Sequence quantizes them at once, and its page goes to the device.
//
// One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "client/worker/device.h"
#include "client/worker/floats.h"
#include "client/worker/model_config.h"
#include "client/worker/running_state.h"
#include "prefixd/client.h"

namespace prefixd::worker {

// The device's memory for pages, taken in large pieces, which it keeps for later pages.
class PagePool {
 public:
  // `device` must outlive it.
  explicit PagePool(Device& device) : device_(device) {}
  // Returns a page of zeros, or null if there is no room.
  std::byte* Take(size_t bytes);
  void GiveBack(std::byte* page, size_t bytes);
  // Returns a page of zeros that nobody writes; null if there is no room.
  std::byte* Zeros(size_t bytes);

 private:
  Device& device_;
  std::vector<DeviceFloats> pieces_;
  size_t used_ = 0;  // bytes of the last piece
  std::map<size_t, std::vector<std::byte*>> free_;
  std::map<size_t, std::byte*> zeros_;
};

// One sequence's pages on the device.
class KvPages {
 public:
  KvPages(std::shared_ptr<PagePool> pool, uint32_t layers)
      : pool_(std::move(pool)), layers_(layers) {}
  ~KvPages() { Clear(); }
  KvPages(const KvPages&) = delete;
  KvPages& operator=(const KvPages&) = delete;
  void Clear();

 private:
  friend class DeviceKv;
  struct Layer {
    uint32_t tokens = 0;                 // of `pages`, in use
    std::vector<BlockTableEntry> pages;  // units on the device
  };
  std::shared_ptr<PagePool> pool_;
  std::vector<Layer> layers_;
  std::vector<std::pair<std::byte*, size_t>> taken_;
};

class DeviceKv {
 public:
  // `scale`: of q.k. `device` must have a paged_attention() and outlive it.
  DeviceKv(Device& device, const ModelConfig& config, std::vector<KvFormat> formats, float scale);

  // Says how many tokens a block has. An error if the device cannot attend on such pages.
  absl::Status SetGrid(uint32_t block_tokens);

  struct Step {
    Sequence* sequence = nullptr;
    RunningState* state = nullptr;
    uint32_t begin = 0, rows = 0;
    uint32_t slot = 0;     // row of the first token
    uint32_t product = 1;  // rows that are attended with: a block's, or 1
    bool precise = true;
  };
  // Begins a step; what a step before it left undone is forgotten.
  absl::Status Begin(const Step& step);
  // Appends the step's K and V of `layer` and attends. qkv: [product] rows, `stride` apart, of
  // queries | keys | values, turned. out: [product, query heads * dim], on the device.
  absl::Status Attend(uint32_t layer, const float* qkv, size_t stride, float* out);
  // Gives the sequence what it does not have yet. Waits for the device.
  absl::Status End();

 private:
  struct Kept {  // rows that were copied out for the sequence
    uint32_t layer = 0;
    uint32_t format = 0;
  };
  using Layer = KvPages::Layer;

  size_t PageBytes(uint32_t format) const;
  size_t row_floats() const { return 2 * size_t{config_.kv_heads} * config_.head_dim; }
  absl::StatusOr<std::byte*> NewPage(uint32_t format);
  // Loads what the sequence has before the step and the device lacks, in whole blocks.
  absl::Status Load(uint32_t layer, const LayerShape& shape, Layer* on_device);
  absl::Status CheckUnseen(uint32_t layer, const LayerShape& shape, uint32_t block) const;
  // Copies the step's rows of K | V to the place of kept_rows_ that is next.
  float* Keep(const float* keys, size_t stride);
  absl::Status AppendKept(uint32_t layer, const float* rows);
  BlockTableEntry PageOf(std::byte* page, uint32_t format) const;
  absl::StatusOr<BlockTableEntry> BlockOf(uint32_t layer, uint32_t block) const;
  // Append the step's K and V, whose rows begin at `keys`, in one of the two ways.
  absl::Status Append(uint32_t layer, const float* keys, size_t stride, Layer* on_device);
  absl::Status ThroughHost(uint32_t layer, const float* keys, size_t stride, Layer* on_device);
  void OnDevice(uint32_t layer, const float* keys, size_t stride, const Layer& on_device);

  Device& device_;
  PagedAttention& attention_;
  const ModelConfig& config_;
  const std::vector<KvFormat> formats_;
  const float scale_;
  const std::shared_ptr<PagePool> pool_;
  uint32_t grid_ = 0;
  Step step_;
  // The format of the block that the step begins, once a layer's has been appended.
  std::optional<uint32_t> new_format_;
  std::vector<Kept> kept_;  // of this step, in the order of kept_rows_
  DeviceFloats kept_rows_;  // [layer][rows][row_floats]
  Floats host_rows_;        // the same
};

}  // namespace prefixd::worker
