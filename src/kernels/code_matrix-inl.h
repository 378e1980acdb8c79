// Products of codes in tile registers (AMX), a matrix of bytes at once: included once per target.
#if defined(PREFIXD_KERNELS_CODE_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CODE_MATRIX_INL_H_
#undef PREFIXD_KERNELS_CODE_MATRIX_INL_H_
#else
#define PREFIXD_KERNELS_CODE_MATRIX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/code_factors-inl.h"
#include "kernels/code_strip-inl.h"
#include "kernels/rows-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// A tile register is 16 rows of 64 bytes; all eight are in use. By inline assembly: the compiler is
// not asked for the instruction set.
class TileRegisters {
 public:
  HWY_INLINE TileRegisters() {
    alignas(64) uint8_t config[64] = {};
    config[0] = 1;  // the only palette
    for (size_t tile = 0; tile < 8; ++tile) {
      config[16 + 2 * tile] = 64;  // bytes of a row
      config[48 + tile] = 16;      // rows
    }
    __asm__ volatile("ldtilecfg (%0)" : : "r"(config) : "memory");
  }
  HWY_INLINE ~TileRegisters() { __asm__ volatile("tilerelease" : : : "memory"); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;

  template <int kTile>
  static HWY_INLINE void Zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static HWY_INLINE void Load(const void* from, size_t pitch) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                     :
                     : "r"(from), "r"(pitch), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  static HWY_INLINE void Store(void* to, size_t pitch) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                     :
                     : "r"(to), "r"(pitch), "i"(kTile)
                     : "memory");
  }
  // c += a * b: rows of a against columns of b, of which 4 bytes of a row are 4 rows.
  template <int kC, int kA, int kB>
  static HWY_INLINE void AddSignedUnsigned() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

// 16 rows of digits at a time: high and low ones of up to 8 rows by turns, or each in a register.
class MatrixProducts {
 public:
  // Whole instructions of keys, pairs of vectors of values.
  static bool Fits(const AttendJob& job) {
    return job.shape.key_dim % kFactorDepth == 0 && job.value_group % 32 == 0;
  }

  explicit HWY_INLINE MatrixProducts(const CodeFactors& factors) : factors_(factors) {}

  HWY_INLINE void MultiplyKeys(const CodeStrip& strip, size_t group, const KeyWords& keys) const {
    const size_t first_word = group * factors_.key_group() / kFactorDepth * kFactorDepth / 4;
    const size_t pitch = factors_.query_pitch();
    const int8_t* query = factors_.QueryOf(strip.first, group);
    for (size_t half = 0; half < kTileTokens / KeyWords::kTokens; ++half) {
      const uint32_t* words = keys.half[half] + first_word * KeyWords::kTokens;
      int32_t* to = factors_.dots() + half * KeyWords::kTokens;
      ZeroDots();
      for (size_t step = 0; step < factors_.group_factors(); step += kFactorDepth) {
        LoadCodes(words + step / 4 * KeyWords::kTokens, KeyWords::kTokens);
        MultiplyDigits(strip, query + step, pitch);
      }
      StoreDots(strip, to, kTileTokens);
    }
  }
  HWY_INLINE void MultiplyValues(const CodeStrip& strip, size_t group,
                                 const ValueWords& values) const {
    const size_t dims = factors_.value_group();
    const uint32_t* words = values.OfGroup(group, dims);
    for (size_t d = 0; d < dims; d += 32) {
      ZeroDots();
      LoadCodes(words + d, values.quad_pitch);
      MultiplyDigits(strip, factors_.WeightsOf(group, 0), kTileTokens);
      StoreDots(strip, factors_.dots() + d, dims);
    }
  }

 private:
  // Registers: 0, 1 dots of high digits (or of both), 2, 3 of low ones; 4, 5 the digits; 6, 7
  // codes.
  static HWY_INLINE void ZeroDots() {
    TileRegisters::Zero<0>();
    TileRegisters::Zero<1>();
    TileRegisters::Zero<2>();
    TileRegisters::Zero<3>();
  }
  static HWY_INLINE void LoadCodes(const uint32_t* words, size_t pitch) {
    TileRegisters::Load<6>(words, pitch * 4);
    TileRegisters::Load<7>(words + 16, pitch * 4);
  }
  static HWY_INLINE bool ByTurns(const CodeStrip& strip) { return strip.rows <= 8; }
  // pitch: from a row's high digits to its low ones.
  static HWY_INLINE void MultiplyDigits(const CodeStrip& strip, const int8_t* digits,
                                        size_t pitch) {
    TileRegisters::Load<4>(digits, ByTurns(strip) ? pitch : 2 * pitch);
    TileRegisters::AddSignedUnsigned<0, 4, 6>();
    TileRegisters::AddSignedUnsigned<1, 4, 7>();
    if (ByTurns(strip)) return;
    TileRegisters::Load<5>(digits + pitch, 2 * pitch);
    TileRegisters::AddSignedUnsigned<2, 5, 6>();
    TileRegisters::AddSignedUnsigned<3, 5, 7>();
  }
  // [row][digit][columns], as CodeDots reads them.
  static HWY_INLINE void StoreDots(const CodeStrip& strip, int32_t* to, size_t columns) {
    const size_t pitch = (ByTurns(strip) ? 1 : 2) * columns * sizeof(int32_t);
    TileRegisters::Store<0>(to, pitch);
    TileRegisters::Store<1>(to + 16, pitch);
    if (ByTurns(strip)) return;
    TileRegisters::Store<2>(to + columns, pitch);
    TileRegisters::Store<3>(to + columns + 16, pitch);
  }

  const CodeFactors& factors_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
