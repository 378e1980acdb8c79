// Tensors of an engine in the layouts that engines have, filled and read on the host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "quant/codec.h"
#include "quant/format.h"
#include "tests/cuda/cases.h"

namespace prefixd::cuda {

enum class EngineLayout { kContiguous, kTokenMajor, kVllm, kSglang, kSplitKeys, kSplitValues };
inline constexpr EngineLayout kEngineLayouts[] = {
    EngineLayout::kContiguous, EngineLayout::kTokenMajor, EngineLayout::kVllm,
    EngineLayout::kSglang,     EngineLayout::kSplitKeys,  EngineLayout::kSplitValues};

// K or V of `tokens` tokens; elements that no token owns are 0xA5 bytes.
class EngineTensor {
 public:
  EngineTensor(EngineLayout layout, quant::Dtype dtype, uint32_t heads, uint32_t tokens,
               uint32_t dim, Draw& draw)
      : layout_(layout), dtype_(dtype), heads_(heads), dim_(dim) {
    block_tokens_ = layout == EngineLayout::kSglang ? 1 : layout < EngineLayout::kVllm ? 0 : 16;
    const uint32_t blocks = block_tokens_ == 0 ? 1 : (tokens + block_tokens_ - 1) / block_tokens_;
    const uint32_t slots = block_tokens_ == 0 ? tokens : block_tokens_;
    all_blocks_ = block_tokens_ == 0 ? 1 : blocks + 3;
    std::vector<int32_t> order(all_blocks_);
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[draw.Below(static_cast<uint32_t>(i))]);
    }
    table_.assign(order.begin(), order.begin() + blocks);
    slots_ = slots;
    bytes_.assign(size_t{all_blocks_} * slots * heads * dim * quant::DtypeBytes(dtype),
                  std::byte{0xA5});
  }

  // What the C functions are told; `data` is device memory that holds bytes().
  prefixd_cuda_tensor Describe(void* data) const {
    prefixd_cuda_tensor tensor = PREFIXD_INIT(prefixd_cuda_tensor);
    tensor.data = data;
    tensor.dtype = static_cast<uint32_t>(dtype_);
    tensor.block_tokens = block_tokens_;
    const int64_t heads = heads_, dim = dim_, slots = slots_;
    tensor.block_stride = heads * dim * slots;
    switch (layout_) {
      case EngineLayout::kContiguous:
        tensor.token_stride = dim;
        tensor.head_stride = slots * dim;
        break;
      case EngineLayout::kTokenMajor:
      case EngineLayout::kVllm:
      case EngineLayout::kSglang:
        tensor.token_stride = heads * dim;
        tensor.head_stride = dim;
        break;
      case EngineLayout::kSplitKeys:
        tensor.split = 8;
        tensor.split_stride = slots * 8;
        tensor.token_stride = 8;
        tensor.head_stride = dim * slots;
        break;
      case EngineLayout::kSplitValues:
        tensor.split = 1;
        tensor.split_stride = slots;
        tensor.token_stride = 1;
        tensor.head_stride = dim * slots;
        break;
    }
    return tensor;
  }

  void Set(uint32_t token, uint32_t head, std::span<const float> row) {
    for (uint32_t c = 0; c < dim_; ++c) {
      quant::NarrowFromFloat(dtype_, &row[c], 1, bytes_.data() + ByteOf(token, head, c));
    }
  }
  std::vector<float> Get(uint32_t token, uint32_t head) const {
    std::vector<float> row(dim_);
    for (uint32_t c = 0; c < dim_; ++c) {
      quant::WidenToFloat(dtype_, bytes_.data() + ByteOf(token, head, c), 1, &row[c]);
    }
    return row;
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }
  const std::vector<int32_t>& table() const { return table_; }
  void set_table(const std::vector<int32_t>& table) { table_ = table; }

 private:
  size_t ByteOf(uint32_t token, uint32_t head, uint32_t channel) const {
    const prefixd_cuda_tensor t = Describe(nullptr);
    const uint32_t split = t.split == 0 ? dim_ : t.split;
    int64_t at = head * t.head_stride + channel / split * t.split_stride + channel % split;
    if (block_tokens_ == 0) {
      at += token * t.token_stride;
    } else {
      at += table_[token / block_tokens_] * t.block_stride + token % block_tokens_ * t.token_stride;
    }
    return static_cast<size_t>(at) * quant::DtypeBytes(dtype_);
  }

  const EngineLayout layout_;
  const quant::Dtype dtype_;
  const uint32_t heads_, dim_;
  uint32_t block_tokens_ = 0, all_blocks_ = 0, slots_ = 0;
  std::vector<int32_t> table_;
  std::vector<std::byte> bytes_;
};

}  // namespace prefixd::cuda
