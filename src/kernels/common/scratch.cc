#include "kernels/common/scratch.h"

#include <new>

#include "absl/strings/str_cat.h"

namespace prefixd::kernels {

void FreeScratch::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t(kScratchAlignment));
}

absl::StatusOr<ScratchMemory> AllocateScratch(size_t bytes) {
  ScratchMemory memory(new (std::align_val_t(kScratchAlignment), std::nothrow) std::byte[bytes]);
  if (memory != nullptr) return memory;
  return absl::ResourceExhaustedError(
      absl::StrCat("attend: no memory for ", bytes, " bytes of scratch"));
}

}  // namespace prefixd::kernels
