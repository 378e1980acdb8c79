// PagedAttention by libprefixd_cuda: its loads, its quantizer, its attention.
//
// One thread at a time.
#pragma once
#include <cuda_runtime_api.h>

#include <compare>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/worker/device.h"
#include "prefixd/cuda.h"

namespace prefixd::worker::cuda {

class CudaPagedAttention final : public PagedAttention {
 public:
  // Works on `stream`. `failed` gets the first failure. All must outlive it.
  CudaPagedAttention(prefixd_cuda* context, cudaStream_t stream, std::string* failed)
      : context_(context), stream_(stream), failed_(*failed) {}
  ~CudaPagedAttention() override;

  Status SetGeometry(const Geometry& geometry) override;
  void Load(std::span<const BlockTableEntry> from, std::span<std::byte* const> to) override;
  // Pins the mapping in the background. Loads copy what is not pinned through a bounce buffer.
  void UseArena(const ArenaView& arena) override;
  Pinned pinned() const override;
  void Quantize(const Rows& rows, uint32_t format, uint32_t slot, std::byte* page) override;
  void Attend(const Call& call) override;

  // Ends the loads, whose pages the host may then change. Waits for them.
  void EndLoads();

 private:
  struct Shape {
    uint32_t rows = 0, window = 0, sink_tokens = 0, precise = 0;
    auto operator<=>(const Shape&) const = default;
  };
  void Fail(const char* what);
  void FreeAttentions();
  void Unpin();                                             // waits for the loads
  prefixd_cuda_attention* AttentionOf(const Shape& shape);  // null if it failed
  void QuantizeOne(const Rows& rows, bool value, uint32_t format, uint32_t slot, std::byte* units);

  prefixd_cuda* const context_;
  const cudaStream_t stream_;
  std::string& failed_;
  std::vector<prefixd_format> formats_;
  Geometry geometry_;
  std::map<Shape, prefixd_cuda_attention*> attentions_;
  std::vector<prefixd_cuda_load*> loads_;
  std::shared_ptr<const void> mapping_;
  prefixd_cuda_arena* arena_ = nullptr;  // of mapping_; null if it was refused
  std::string why_not_pinned_;
};

}  // namespace prefixd::worker::cuda
