// Fast kernels for MLX affine pages in layout tiled, groups of 64.
#include "attend_fast_entry.cuh"

namespace prefixd::cuda {

std::span<const FastEntry> FastMlxTiled() {
  static constexpr FastEntry kEntries[] = {
      MlxEntry<128, 8, 4, 64, true, Parameters::kF16>(),
      MlxEntry<128, 8, 8, 64, true, Parameters::kF16>(),
      MlxEntry<128, 4, 4, 64, true, Parameters::kF16>(),
      MlxEntry<128, 8, 4, 64, true, Parameters::kBf16>(),
      MlxEntry<128, 8, 8, 64, true, Parameters::kBf16>(),
      MlxEntry<128, 4, 4, 64, true, Parameters::kBf16>(),
  };
  return kEntries;
}

}  // namespace prefixd::cuda
