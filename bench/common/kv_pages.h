// Sequences of seeded random K and V, stored as prefixd stores them: pages of a layer group, all
// its layers and heads inside, cut from a store. And the block tables that walk them.
//
// One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "bench/common/page_store.h"
#include "block/layer_group.h"
#include "quant/block_table.h"

namespace prefixd::bench {

// [count] standard normal values.
std::vector<float> NormalFloats(size_t count, uint32_t seed);

struct KvShape {
  quant::KvFormat format;
  uint32_t kv_heads = 8;
  uint32_t dim = 128;
  uint32_t tokens = 0;  // a multiple of block_tokens
  uint32_t block_tokens = 64;
  uint32_t layers = 0;     // of the group; 0 = as the client splits a model of 32
  uint32_t sequences = 0;  // at most; 0 = as many as fit
  uint32_t seed = 0;
};

// The group: the first one of a 32-layer model, as the client splits it, unless the shape says.
block::LayerGroup GroupOf(const KvShape& shape);

// Where the pages of a sequence stand: one behind the other as they were committed, or anywhere.
enum class PageOrder { kCommit, kRandom };

class KvPages {
 public:
  // Fills the store with whole sequences. ResourceExhausted when not even one fits.
  // Requires: quant::Validate(format.key and .value, shape.dim) is OK.
  static absl::StatusOr<KvPages> Fill(PageStore& store, const KvShape& shape);

  const KvShape& shape() const { return shape_; }
  // Layers of all sequences: a walk over them finds nothing in a cache.
  size_t tables() const { return commit_order_.size(); }
  quant::BlockTable table(PageOrder order, size_t index) const {
    return (order == PageOrder::kCommit ? commit_order_ : random_order_)[index];
  }
  std::span<const quant::KvFormat> formats() const { return {&shape_.format, 1}; }
  // K and V of one table, without padding.
  uint64_t table_bytes() const { return table_bytes_; }

 private:
  using Tables = std::vector<std::vector<quant::BlockTableEntry>>;
  explicit KvPages(const KvShape& shape) : shape_(shape) {}
  Tables TablesOf(const std::vector<StoredPage>& pages, uint32_t layers,
                  uint64_t layer_bytes) const;

  KvShape shape_;
  uint64_t table_bytes_ = 0;
  Tables commit_order_, random_order_;
};

}  // namespace prefixd::bench
