// A layer's pages with memory that must not be touched on one side of each. For tests of kernels/.
#pragma once
#include <cstddef>
#include <deque>
#include <vector>

#include "tests/kernels/guarded_bytes.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {

enum class Guard { kBefore, kBehind };

// Copies of the layer's pages, each ending (or beginning) where a page without access begins (or
// ends).
class GuardedPages {
 public:
  GuardedPages(const PagedLayer& layer, const LayerShape& shape, Guard guard)
      : entries_(layer.table().begin(), layer.table().end()) {
    for (quant::BlockTableEntry& entry : entries_) {
      const quant::KvFormat& format = layer.formats()[entry.format];
      const size_t bytes =
          shape.kv_heads *
          (quant::LayoutOfUnit(format.key, shape.key_dim, entry.page_tokens).unit_bytes +
           quant::LayoutOfUnit(format.value, shape.value_dim, entry.page_tokens).unit_bytes);
      const auto at = guard == Guard::kBehind ? GuardedBytes::At::kEnd : GuardedBytes::At::kBegin;
      entry.units = pages_.emplace_back(std::span(entry.units, bytes), at).data();
    }
  }

  quant::BlockTable table() const { return entries_; }
  // From now on nobody may read the block.
  void Forbid(size_t block) { pages_[block].Forbid(); }

 private:
  std::deque<GuardedBytes> pages_;
  std::vector<quant::BlockTableEntry> entries_;
};

}  // namespace prefixd::kernels
