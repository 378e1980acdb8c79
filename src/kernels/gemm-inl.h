// Small matrix products in registers, for one SIMD target: included once per target.
//
// Every element of the result is one chain acc = a * b + acc over increasing depth, whatever tile
// it falls into. That chain is what makes a query row's result independent of its neighbours.
#if defined(PREFIXD_KERNELS_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_GEMM_INL_H_
#undef PREFIXD_KERNELS_GEMM_INL_H_
#else
#define PREFIXD_KERNELS_GEMM_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// c[r][j] = start + sum over k < depth of a[r][k] * b[k][j], where start is 0 when row_scale is
// null and c[r][j] * row_scale[r] otherwise. Columns are computed in whole vectors: b and c have
// room.
struct Product {
  const float* a = nullptr;
  size_t a_pitch = 0;
  const float* b = nullptr;
  size_t b_pitch = 0;
  size_t depth = 0;
  const float* row_scale = nullptr;
  float* c = nullptr;
  size_t c_pitch = 0;
  size_t columns = 0;
};

// Tile width: as many accumulators as the registers hold beside one row of b and one element of a.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
inline constexpr size_t kTileVectors = 4;
#else
inline constexpr size_t kTileVectors = 2;
#endif

// One row of a tile. Named members and not an array: GCC at -O2 keeps arrays of vectors in memory.
template <size_t kVectors>
struct TileRow {
  VF v0, v1, v2, v3;

  HWY_INLINE void Start(const Product& p, size_t row, size_t column) {
    const DF df;
    v0 = v1 = v2 = v3 = hn::Zero(df);
    if (p.row_scale == nullptr) return;
    const size_t lanes = hn::Lanes(df);
    const float* c = p.c + row * p.c_pitch + column;
    const VF scale = hn::Set(df, p.row_scale[row]);
    v0 = hn::Mul(hn::LoadU(df, c), scale);
    if constexpr (kVectors > 1) v1 = hn::Mul(hn::LoadU(df, c + lanes), scale);
    if constexpr (kVectors > 2) v2 = hn::Mul(hn::LoadU(df, c + 2 * lanes), scale);
    if constexpr (kVectors > 3) v3 = hn::Mul(hn::LoadU(df, c + 3 * lanes), scale);
  }
  HWY_INLINE void Add(float a, const TileRow& b) {
    const VF factor = hn::Set(DF(), a);
    v0 = hn::MulAdd(factor, b.v0, v0);
    if constexpr (kVectors > 1) v1 = hn::MulAdd(factor, b.v1, v1);
    if constexpr (kVectors > 2) v2 = hn::MulAdd(factor, b.v2, v2);
    if constexpr (kVectors > 3) v3 = hn::MulAdd(factor, b.v3, v3);
  }
  HWY_INLINE void Load(const float* b) {
    const DF df;
    const size_t lanes = hn::Lanes(df);
    v0 = v1 = v2 = v3 = hn::LoadU(df, b);
    if constexpr (kVectors > 1) v1 = hn::LoadU(df, b + lanes);
    if constexpr (kVectors > 2) v2 = hn::LoadU(df, b + 2 * lanes);
    if constexpr (kVectors > 3) v3 = hn::LoadU(df, b + 3 * lanes);
  }
  HWY_INLINE void Store(float* c) const {
    const DF df;
    const size_t lanes = hn::Lanes(df);
    hn::StoreU(v0, df, c);
    if constexpr (kVectors > 1) hn::StoreU(v1, df, c + lanes);
    if constexpr (kVectors > 2) hn::StoreU(v2, df, c + 2 * lanes);
    if constexpr (kVectors > 3) hn::StoreU(v3, df, c + 3 * lanes);
  }
};

template <size_t kRows, size_t kVectors>
HWY_INLINE void MultiplyTile(const Product& p, size_t column) {
  static_assert(kRows <= kMaxTileRows && kVectors <= 4);
  TileRow<kVectors> r0, r1, r2, r3, r4, r5, b_row;
  r0.Start(p, 0, column);
  if constexpr (kRows > 1) r1.Start(p, 1, column);
  if constexpr (kRows > 2) r2.Start(p, 2, column);
  if constexpr (kRows > 3) r3.Start(p, 3, column);
  if constexpr (kRows > 4) r4.Start(p, 4, column);
  if constexpr (kRows > 5) r5.Start(p, 5, column);
  const float* a = p.a;
  const float* b = p.b + column;
  const size_t pitch = p.a_pitch;
  for (size_t k = 0; k < p.depth; ++k, ++a, b += p.b_pitch) {
    b_row.Load(b);
    r0.Add(a[0], b_row);
    if constexpr (kRows > 1) r1.Add(a[pitch], b_row);
    if constexpr (kRows > 2) r2.Add(a[2 * pitch], b_row);
    if constexpr (kRows > 3) r3.Add(a[3 * pitch], b_row);
    if constexpr (kRows > 4) r4.Add(a[4 * pitch], b_row);
    if constexpr (kRows > 5) r5.Add(a[5 * pitch], b_row);
  }
  float* c = p.c + column;
  r0.Store(c);
  if constexpr (kRows > 1) r1.Store(c + p.c_pitch);
  if constexpr (kRows > 2) r2.Store(c + 2 * p.c_pitch);
  if constexpr (kRows > 3) r3.Store(c + 3 * p.c_pitch);
  if constexpr (kRows > 4) r4.Store(c + 4 * p.c_pitch);
  if constexpr (kRows > 5) r5.Store(c + 5 * p.c_pitch);
}

template <size_t kRows>
HWY_NOINLINE void MultiplyRows(const Product& p) {
  const size_t lanes = hn::Lanes(DF());
  size_t column = 0;
  if constexpr (kTileVectors == 4) {
    for (; column + 3 * lanes < p.columns; column += 4 * lanes) MultiplyTile<kRows, 4>(p, column);
  }
  for (; column + lanes < p.columns; column += 2 * lanes) MultiplyTile<kRows, 2>(p, column);
  for (; column < p.columns; column += lanes) MultiplyTile<kRows, 1>(p, column);
}

// rows: 1 ... kMaxTileRows.
HWY_INLINE void Multiply(const Product& p, size_t rows) {
  switch (rows) {
    case 1:
      return MultiplyRows<1>(p);
    case 2:
      return MultiplyRows<2>(p);
    case 3:
      return MultiplyRows<3>(p);
    case 4:
      return MultiplyRows<4>(p);
    case 5:
      return MultiplyRows<5>(p);
    default:
      return MultiplyRows<6>(p);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
