// One layer of seeded random keys and values as quantized pages, for tests of kernels/. Every byte
// that no token owns (unused slots, padding) is 0xff: NaN as a float, a half and a scale.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "quant/block_table.h"
#include "quant/format.h"
#include "quant/unit.h"

namespace prefixd::kernels {

struct LayerShape {
  uint32_t kv_heads = 1;
  uint32_t key_dim = 64;
  uint32_t value_dim = 64;
  float element_scale = 1;  // elements' standard deviation
  // If not 0: elements are not random, but 1 in so many channels, -1 in the next ones, and so on.
  uint32_t stripe = 0;
  float value_scale = 1;  // by which V's elements are larger than K's
};

// How some consecutive tokens are stored.
struct BlockShape {
  uint32_t tokens = 0;
  uint32_t page_tokens = 0;
  uint32_t format = 0;
};

// Full blocks of `block_tokens` and a last one for the rest, in uncut pages.
std::vector<BlockShape> UniformBlocks(uint32_t tokens, uint32_t block_tokens, uint32_t format = 0);

class PagedLayer {
 public:
  // Token t of head h has the same values in every layer of one seed and shape, whatever the
  // blocks.
  PagedLayer(const LayerShape& shape, std::vector<quant::KvFormat> formats,
             const std::vector<BlockShape>& blocks, uint32_t seed = 1);

  quant::BlockTable table() const { return entries_; }
  std::span<const quant::KvFormat> formats() const { return formats_; }

 private:
  struct FreeBytes {
    void operator()(std::byte* bytes) const {
      ::operator delete[](bytes, std::align_val_t(quant::kUnitAlignment));
    }
  };
  std::byte* StoreUnits(const LayerShape& shape, const BlockShape& block, uint32_t first_token,
                        uint32_t seed);

  std::vector<quant::KvFormat> formats_;
  std::vector<std::unique_ptr<std::byte[], FreeBytes>> pages_;
  std::vector<quant::BlockTableEntry> entries_;
};

// [count] standard normal values.
std::vector<float> RandomFloats(size_t count, uint32_t seed);

// Every format that fits rows of `dim`, each in layout rows.
std::vector<quant::TensorFormat> FormatsFor(uint32_t dim);

}  // namespace prefixd::kernels
