// Rows whose softmax on codes is computed together, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_STRIP_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_STRIP_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_STRIP_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Rows [first, first + rows) of a slice; the r-th sees `seen[r]` of the tile.
struct CodeStrip {
  uint32_t first = 0;
  uint32_t rows = 0;
  TileTokens seen[kStripRows];
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
