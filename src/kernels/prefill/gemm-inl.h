// Small matrix products in registers, for one SIMD target: included once per target.
//
// Every element of the result is one chain acc = a * b + acc over increasing depth, whatever tile
// it falls into. That chain is what makes a query row's result independent of its neighbours.
// Elements are floats, or words of four bytes: a lane then adds four exact products at once.
#if defined(PREFIXD_KERNELS_PREFILL_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_GEMM_INL_H_
#undef PREFIXD_KERNELS_PREFILL_GEMM_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_GEMM_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/prefill/attend_slice.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Tile width: as many accumulators as the registers hold beside one row of b and one element of a.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
inline constexpr size_t kTileVectors = 4;
#else
inline constexpr size_t kTileVectors = 2;
#endif

struct FloatElement {
  using T = float;
  using D = DF;
  static constexpr size_t kMaxRows = kMaxTileRows;
  static constexpr size_t kMaxVectors = kTileVectors;
  static constexpr size_t kSteps = 1, kColumnsAWord = 1;
  static HWY_INLINE VF MulAdd(VF a, VF b, VF sum) { return hn::MulAdd(a, b, sum); }
  template <class Row>
  static HWY_INLINE void LoadRow(const T* b, Row* row) {
    row->Load(b);
  }
};

#if PREFIXD_KERNELS_HAVE_PAIRS
// An int32_t holds four bytes, signed on one side and unsigned on the other.
template <bool kSignedB>
struct ByteElement {
  using T = int32_t;
  using D = DI;
  static constexpr size_t kMaxRows = 8;
  static constexpr size_t kMaxVectors = 2;
  static constexpr size_t kSteps = 1, kColumnsAWord = 1;
  template <class Row>
  static HWY_INLINE void LoadRow(const T* b, Row* row) {
    row->Load(b);
  }
  static HWY_INLINE VI MulAdd(VI a, VI b, VI sum) {
    // No intrinsic: Highway 1.0.3 asks the CPU for AVX512_VNNI here but not the compiler.
    if constexpr (kSignedB) {
      __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    } else {
      __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(b.raw), "v"(a.raw));
    }
    return sum;
  }
};

// Words of nibbles, each the high half of an unsigned byte. Low nibbles belong to one step and high
// nibbles to the next (keys), or to 16 columns and to the next 16 (values).
struct NibbleElement : ByteElement<false> {
 protected:
  static HWY_INLINE VI LowBytes(VI words) { return HighBytes(hn::ShiftLeft<4>(words)); }
  static HWY_INLINE VI HighBytes(VI words) {
    return hn::And(words, hn::Set(DI(), static_cast<int32_t>(0xf0f0f0f0)));
  }
};
struct NibbleKeyElement : NibbleElement {
  static constexpr size_t kSteps = 2;
  template <class Row>
  static HWY_INLINE void LoadRows(const T* b, Row* low, Row* high) {
    high->Load(b);
    low->v0 = LowBytes(high->v0);
    low->v1 = LowBytes(high->v1);
    high->v0 = HighBytes(high->v0);
    high->v1 = HighBytes(high->v1);
  }
};
struct NibbleValueElement : NibbleElement {
  static constexpr size_t kColumnsAWord = 2;
  template <class Row>
  static HWY_INLINE void LoadRow(const T* b, Row* row) {
    const VI words = hn::LoadU(DI(), b);
    row->v0 = LowBytes(words);
    row->v1 = HighBytes(words);
  }
};
#endif

// c[r][j] = start + sum over k < depth of a[r][k] * b[k][j], where start is c[r][j] * row_scale[r]
// when row_scale is given, else 0. Columns are computed in whole vectors: b and c need room.
template <class Element>
struct Product {
  using T = typename Element::T;
  const T* a = nullptr;
  size_t a_pitch = 0;
  const T* b = nullptr;
  size_t b_pitch = 0;
  size_t depth = 0;
  const T* row_scale = nullptr;
  T* c = nullptr;
  size_t c_pitch = 0;
  size_t columns = 0;
};

// One row of a tile. Named members and not an array: GCC at -O2 keeps arrays of vectors in memory.
template <class Element, size_t kVectors>
struct TileRow {
  using T = typename Element::T;
  using D = typename Element::D;
  using V = hn::Vec<D>;
  V v0, v1, v2, v3;

  HWY_INLINE TileRow() {}  // an implicit one lacks the target attributes that NEON needs
  HWY_INLINE void Start(const Product<Element>& p, size_t row, size_t column) {
    const D d;
    v0 = v1 = v2 = v3 = hn::Zero(d);
    if (p.row_scale == nullptr) return;
    const size_t lanes = hn::Lanes(d);
    const T* c = p.c + row * p.c_pitch + column;
    const V scale = hn::Set(d, p.row_scale[row]);
    v0 = hn::Mul(hn::LoadU(d, c), scale);
    if constexpr (kVectors > 1) v1 = hn::Mul(hn::LoadU(d, c + lanes), scale);
    if constexpr (kVectors > 2) v2 = hn::Mul(hn::LoadU(d, c + 2 * lanes), scale);
    if constexpr (kVectors > 3) v3 = hn::Mul(hn::LoadU(d, c + 3 * lanes), scale);
  }
  HWY_INLINE void Add(T a, const TileRow& b) {
    const V factor = hn::Set(D(), a);
    v0 = Element::MulAdd(factor, b.v0, v0);
    if constexpr (kVectors > 1) v1 = Element::MulAdd(factor, b.v1, v1);
    if constexpr (kVectors > 2) v2 = Element::MulAdd(factor, b.v2, v2);
    if constexpr (kVectors > 3) v3 = Element::MulAdd(factor, b.v3, v3);
  }
  HWY_INLINE void Load(const T* b) {
    const D d;
    const size_t lanes = hn::Lanes(d);
    v0 = v1 = v2 = v3 = hn::LoadU(d, b);
    if constexpr (kVectors > 1) v1 = hn::LoadU(d, b + lanes);
    if constexpr (kVectors > 2) v2 = hn::LoadU(d, b + 2 * lanes);
    if constexpr (kVectors > 3) v3 = hn::LoadU(d, b + 3 * lanes);
  }
  HWY_INLINE void Store(T* c) const {
    const D d;
    const size_t lanes = hn::Lanes(d);
    hn::StoreU(v0, d, c);
    if constexpr (kVectors > 1) hn::StoreU(v1, d, c + lanes);
    if constexpr (kVectors > 2) hn::StoreU(v2, d, c + 2 * lanes);
    if constexpr (kVectors > 3) hn::StoreU(v3, d, c + 3 * lanes);
  }
};

// The rows of a tile.
template <class Element, size_t kRows, size_t kVectors>
struct TileRows {
  static_assert(kRows <= 8 && kVectors <= 4);
  using T = typename Element::T;
  TileRow<Element, kVectors> r0, r1, r2, r3, r4, r5, r6, r7;

  HWY_INLINE TileRows() {}
  HWY_INLINE void Start(const Product<Element>& p, size_t column) {
    r0.Start(p, 0, column);
    if constexpr (kRows > 1) r1.Start(p, 1, column);
    if constexpr (kRows > 2) r2.Start(p, 2, column);
    if constexpr (kRows > 3) r3.Start(p, 3, column);
    if constexpr (kRows > 4) r4.Start(p, 4, column);
    if constexpr (kRows > 5) r5.Start(p, 5, column);
    if constexpr (kRows > 6) r6.Start(p, 6, column);
    if constexpr (kRows > 7) r7.Start(p, 7, column);
  }
  // Adds one step. A row's factor stands `pitch` after that of the row before.
  HWY_INLINE void Add(const T* a, size_t pitch, const TileRow<Element, kVectors>& b) {
    r0.Add(a[0], b);
    if constexpr (kRows > 1) r1.Add(a[pitch], b);
    if constexpr (kRows > 2) r2.Add(a[2 * pitch], b);
    if constexpr (kRows > 3) r3.Add(a[3 * pitch], b);
    if constexpr (kRows > 4) r4.Add(a[4 * pitch], b);
    if constexpr (kRows > 5) r5.Add(a[5 * pitch], b);
    if constexpr (kRows > 6) r6.Add(a[6 * pitch], b);
    if constexpr (kRows > 7) r7.Add(a[7 * pitch], b);
  }
  HWY_INLINE void Store(T* c, size_t pitch) const {
    r0.Store(c);
    if constexpr (kRows > 1) r1.Store(c + pitch);
    if constexpr (kRows > 2) r2.Store(c + 2 * pitch);
    if constexpr (kRows > 3) r3.Store(c + 3 * pitch);
    if constexpr (kRows > 4) r4.Store(c + 4 * pitch);
    if constexpr (kRows > 5) r5.Store(c + 5 * pitch);
    if constexpr (kRows > 6) r6.Store(c + 6 * pitch);
    if constexpr (kRows > 7) r7.Store(c + 7 * pitch);
  }
};

template <class Element, size_t kRows, size_t kVectors>
HWY_INLINE void MultiplyTile(const Product<Element>& p, size_t column) {
  TileRows<Element, kRows, kVectors> rows;
  TileRow<Element, kVectors> b_row;
  rows.Start(p, column);
  const typename Element::T* a = p.a;
  const typename Element::T* b = p.b + column / Element::kColumnsAWord;
  for (size_t k = 0; k < p.depth; k += Element::kSteps, a += Element::kSteps, b += p.b_pitch) {
    if constexpr (Element::kSteps == 1) {
      Element::LoadRow(b, &b_row);
      rows.Add(a, p.a_pitch, b_row);
    } else {
      TileRow<Element, kVectors> next;
      Element::LoadRows(b, &b_row, &next);
      rows.Add(a, p.a_pitch, b_row);
      rows.Add(a + 1, p.a_pitch, next);
    }
  }
  rows.Store(p.c + column, p.c_pitch);
}

template <class Element, size_t kRows>
HWY_NOINLINE void MultiplyRows(const Product<Element>& p) {
  const size_t lanes = hn::Lanes(typename Element::D());
  size_t column = 0;
  if constexpr (Element::kMaxVectors == 4) {
    for (; column + 3 * lanes < p.columns; column += 4 * lanes)
      MultiplyTile<Element, kRows, 4>(p, column);
  }
  for (; column + lanes < p.columns; column += 2 * lanes)
    MultiplyTile<Element, kRows, 2>(p, column);
  for (; column < p.columns; column += lanes) MultiplyTile<Element, kRows, 1>(p, column);
}

// rows: 1 ... kMaxRows.
template <class Element>
HWY_INLINE void Multiply(const Product<Element>& p, size_t rows) {
  switch (rows) {
    case 1:
      return MultiplyRows<Element, 1>(p);
    case 2:
      return MultiplyRows<Element, 2>(p);
    case 3:
      return MultiplyRows<Element, 3>(p);
    case 4:
      return MultiplyRows<Element, 4>(p);
    case 5:
      return MultiplyRows<Element, 5>(p);
    case 6:
      return MultiplyRows<Element, 6>(p);
    default:
      if constexpr (Element::kMaxRows > 6) {
        return rows == 7 ? MultiplyRows<Element, 7>(p) : MultiplyRows<Element, 8>(p);
      }
  }
}

// Multiplies any number of rows.
template <class Element>
HWY_INLINE void MultiplyStrip(Product<Element> p, size_t rows) {
  constexpr size_t kRows = Element::kMaxRows;
  for (size_t row = 0; row < rows; row += kRows) {
    Multiply(p, HWY_MIN(rows - row, kRows));
    p.a += kRows * p.a_pitch;
    p.c += kRows * p.c_pitch;
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
