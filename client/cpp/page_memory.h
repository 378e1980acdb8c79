// Memory of one page, 128-byte aligned, as kernels want their units. It is in the session's staging
// memory, where a Commit can point at it, or on the heap.
//
// A handle: copies share the bytes, the last one frees them.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "quant/format.h"

namespace prefixd::client {

class StagingMemory;

struct PageMemory {
  std::shared_ptr<std::byte> bytes;        // null if there is none
  const StagingMemory* staging = nullptr;  // that `bytes` are in and keep alive; null = the heap

  std::byte* get() const { return bytes.get(); }
  explicit operator bool() const { return bytes != nullptr; }
};

// Allocates a page on the heap. None if memory is out.
inline PageMemory AllocatePage(size_t size) {
  const size_t padded = base::AlignUp(size, quant::kUnitAlignment);
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(quant::kUnitAlignment, padded));
  if (bytes == nullptr) return {};
  return {.bytes = {bytes, [](std::byte* old) { std::free(old); }}};
}

}  // namespace prefixd::client
