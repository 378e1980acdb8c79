#include "kernels/hadamard.h"

#include <cmath>

#include "kernels/common/simd_targets.h"
#include "quant/format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
// Lane i becomes v[i] + v[i ^ (1 << kBit)], or v[i ^ (1 << kBit)] - v[i] where i has bit kBit.
template <int kBit>
HWY_INLINE VF Butterfly(VF v, VF partner) {
  const DI di;
  const VI upper = hn::And(hn::Iota(di, 0), hn::Set(di, 1 << kBit));
  const VF sign = hn::BitCast(DF(), hn::ShiftLeft<31 - kBit>(upper));
  return hn::Add(partner, hn::Xor(v, sign));
}

HWY_INLINE VF ButterfliesWithin(VF v) {
  v = Butterfly<0>(v, hn::Shuffle2301(v));
  v = Butterfly<1>(v, hn::Shuffle1032(v));
#if HWY_MAX_BYTES >= 32
  v = Butterfly<2>(v, hn::SwapAdjacentBlocks(v));
#endif
#if HWY_MAX_BYTES >= 64
  v = Butterfly<3>(v, hn::SwapAdjacentBlocks(hn::ReverseBlocks(DF(), v)));
#endif
  return v;
}
#else
HWY_INLINE VF ButterfliesWithin(VF v) { return v; }
#endif

// Applies one level of butterflies, between elements of x that are `half` apart.
HWY_INLINE void OneLevel(float* HWY_RESTRICT x, size_t count, size_t half) {
  const DF df;
  for (size_t i = 0; i < count; i += 2 * half) {
    for (size_t j = i; j < i + half; j += hn::Lanes(df)) {
      const VF a = hn::LoadU(df, x + j), b = hn::LoadU(df, x + j + half);
      hn::StoreU(hn::Add(a, b), df, x + j);
      hn::StoreU(hn::Sub(a, b), df, x + j + half);
    }
  }
}

// Applies the levels of `half` and 2 * half with one load and store.
HWY_INLINE void TwoLevels(float* HWY_RESTRICT x, size_t count, size_t half) {
  const DF df;
  for (size_t i = 0; i < count; i += 4 * half) {
    for (size_t j = i; j < i + half; j += hn::Lanes(df)) {
      const VF a = hn::LoadU(df, x + j), b = hn::LoadU(df, x + j + half);
      const VF c = hn::LoadU(df, x + j + 2 * half), d = hn::LoadU(df, x + j + 3 * half);
      const VF ab = hn::Add(a, b), a_b = hn::Sub(a, b), cd = hn::Add(c, d), c_d = hn::Sub(c, d);
      hn::StoreU(hn::Add(ab, cd), df, x + j);
      hn::StoreU(hn::Add(a_b, c_d), df, x + j + half);
      hn::StoreU(hn::Sub(ab, cd), df, x + j + 2 * half);
      hn::StoreU(hn::Sub(a_b, c_d), df, x + j + 3 * half);
    }
  }
}

// Requires: count is a power of two and at least a vector.
HWY_INLINE void RotateRun(float* HWY_RESTRICT x, size_t count) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  const VF factor = hn::Set(df, 1.0f / std::sqrt(static_cast<float>(count)));
  for (size_t i = 0; i < count; i += lanes) {
    hn::StoreU(ButterfliesWithin(hn::Mul(hn::LoadU(df, x + i), factor)), df, x + i);
  }
  size_t half = lanes;
  for (; 4 * half <= count; half *= 4) TwoLevels(x, count, half);
  if (half < count) OneLevel(x, count, half);
}

HWY_ATTR void RotateOnTarget(float* rows, size_t count, size_t stride, size_t dim, size_t run) {
  for (size_t row = 0; row < count; ++row, rows += stride) {
    if (run < hn::Lanes(DF())) {
      for (size_t i = 0; i < dim; i += run) RotateRowScalar({rows + i, run});
      continue;
    }
    for (size_t i = 0; i < dim; i += run) RotateRun(rows + i, run);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(RotateOnTarget);

}  // namespace

void RotateRows(float* rows, size_t count, size_t stride, uint32_t dim) {
  HWY_DYNAMIC_DISPATCH(RotateOnTarget)(rows, count, stride, dim, quant::HadamardBlock(dim));
}

void RotateRowScalar(std::span<float> row) {
  const size_t run = quant::HadamardBlock(static_cast<uint32_t>(row.size()));
  const float factor = 1.0f / std::sqrt(static_cast<float>(run));
  for (float& value : row) value *= factor;
  for (size_t half = 1; half < run; half *= 2) {
    for (size_t i = 0; i < row.size(); ++i) {
      if ((i & half) != 0) continue;
      const float a = row[i], b = row[i + half];
      row[i] = a + b;
      row[i + half] = a - b;
    }
  }
}

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
