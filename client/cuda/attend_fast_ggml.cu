// Fast kernels for ggml's q8_0 and q4_0 pages in layout tiled.
#include "attend_fast_entry.cuh"

namespace prefixd::cuda {

std::span<const FastEntry> FastGgml() {
  static constexpr FastEntry kEntries[] = {
      GgmlEntry<128, 8, 8>(),
      GgmlEntry<128, 8, 4>(),
      GgmlEntry<128, 4, 4>(),
  };
  return kEntries;
}

}  // namespace prefixd::cuda
