// A layer's pages with memory that must not be touched on one side of each. For tests of kernels/.
#pragma once
#include <cstddef>
#include <vector>

#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {

enum class Guard { kBefore, kBehind };

// Copies of the layer's pages, each ending (or beginning) where a page without access begins (or
// ends).
class GuardedPages {
 public:
  GuardedPages(const PagedLayer& layer, const LayerShape& shape, Guard guard);
  ~GuardedPages();
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  quant::BlockTable table() const { return entries_; }
  // From now on nobody may read the block.
  void Forbid(size_t block);

 private:
  struct Mapping {
    std::byte* begin = nullptr;
    size_t bytes = 0;  // guards included
  };
  std::vector<Mapping> mappings_;
  std::vector<quant::BlockTableEntry> entries_;
};

}  // namespace prefixd::kernels
