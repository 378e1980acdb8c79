// Memory of one page: 128-byte aligned, as kernels want their units.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "quant/format.h"

namespace prefixd::client {

// Null when memory is out.
struct FreeMemory {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using PageMemory = std::unique_ptr<std::byte[], FreeMemory>;

inline PageMemory AllocatePage(size_t bytes) {
  const size_t padded = base::AlignUp(bytes, quant::kUnitAlignment);
  return PageMemory(static_cast<std::byte*>(std::aligned_alloc(quant::kUnitAlignment, padded)));
}

inline PageMemory AllocateZeroPage(size_t bytes) {
  PageMemory page = AllocatePage(bytes);
  if (page) std::memset(page.get(), 0, bytes);
  return page;
}

}  // namespace prefixd::client
