// Products of codes in tile registers (AMX), a matrix of bytes at once: included once per target.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_MATRIX_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_MATRIX_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_MATRIX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/prefill/code_factors-inl.h"
#include "kernels/prefill/code_strip-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// The eight tile registers, of 16 rows of 64 bytes each. Uses inline assembly: the compiler does
// not have the instruction set enabled.
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
  // c += a * b: rows of a times columns of b. Every 4 bytes in a row of b are 4 rows of one column.
  // One side is signed.
  template <bool kSignedB, int kC, int kA, int kB>
  static HWY_INLINE void AddProducts() {
    if constexpr (kSignedB) {
      __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
    } else {
      __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
    }
  }
};

// Whether keys fill whole instructions and groups of values fill pairs of vectors.
inline bool FitsMatrices(const AttendJob& job) {
  return job.shape.key_dim % kFactorDepth == 0 && job.value_group % 32 == 0;
}

// Multiplies 16 rows of digits at a time. A register holds single digits, or the high and low
// digits of up to 8 rows in turn; of more rows, high and low digits have a register each.
template <class Digits>
class MatrixProducts {
 public:
  explicit HWY_INLINE MatrixProducts(const CodeFactors<Digits>& factors) : factors_(factors) {}

  // Returns false: codes go from memory to a tile register.
  static constexpr bool TakesNibbles(size_t) { return false; }

  HWY_INLINE void MultiplyKeys(const CodeStrip& strip, size_t group, const KeyWords& keys) const {
    const size_t first_word = group * factors_.key_group() / kFactorDepth * kFactorDepth / 4;
    const Factors digits{factors_.QueryOf(strip.first, group), factors_.query_pitch(),
                         factors_.group_factors() / kFactorDepth, ByTurns(strip)};
    digits.LoadFirst();
    for (size_t half = 0; half < kTileTokens / KeyWords::kTokens; ++half) {
      const uint32_t* words = keys.half[half] + first_word * KeyWords::kTokens;
      MultiplyColumns<false>(digits, words, KeyWords::kTokens,
                             factors_.dots() + half * KeyWords::kTokens, kTileTokens);
    }
  }
  HWY_INLINE void MultiplyValues(const CodeStrip& strip, size_t group,
                                 const ValueWords& values) const {
    const size_t dims = factors_.value_group();
    const uint32_t* words = values.OfGroup(group, dims);
    const Factors digits{factors_.WeightsOf(group, 0), kTileTokens, 1, ByTurns(strip)};
    digits.LoadFirst();
    for (size_t d = 0; d < dims; d += 32) {
      MultiplyColumns<Digits::kSignedValues>(digits, words + d, values.quad_pitch,
                                             factors_.dots() + d, dims);
    }
  }

 private:
  // Registers 0 and 2 hold dots of high digits (or of both), 1 and 3 dots of low digits, 4 and 5
  // codes, 6 and 7 digits. Sets of 16 columns use 0, 1, 4 and 2, 3, 5 in turn, so that the products
  // of one set need not wait until those of the set before are stored.
  struct Factors {
    const int8_t* high = nullptr;
    size_t pitch = 0;  // bytes to the low digits
    size_t steps = 1;  // of kFactorDepth bytes
    bool by_turns = false;

    HWY_INLINE void Load(size_t step) const {
      const int8_t* from = high + step * kFactorDepth;
      TileRegisters::Load<6>(from, by_turns ? pitch : 2 * pitch);
      if (!by_turns) TileRegisters::Load<7>(from + pitch, 2 * pitch);
    }
    // Loads the digits of a single step, which stay in their registers.
    HWY_INLINE void LoadFirst() const {
      if (steps == 1) Load(0);
    }
  };

  static HWY_INLINE bool ByTurns(const CodeStrip& strip) {
    return Digits::kCount == 1 || strip.rows <= 8;
  }

  // Multiplies 32 columns of words to [row][digit][columns], as CodeDots reads them.
  template <bool kSignedWords>
  static HWY_INLINE void MultiplyColumns(const Factors& digits, const uint32_t* words, size_t pitch,
                                         int32_t* to, size_t columns) {
    MultiplyBlock<kSignedWords, 0>(digits, words, pitch, to, columns);
    MultiplyBlock<kSignedWords, 1>(digits, words + 16, pitch, to + 16, columns);
  }
  template <bool kSignedWords, int kSet>
  static HWY_INLINE void MultiplyBlock(const Factors& digits, const uint32_t* words, size_t pitch,
                                       int32_t* to, size_t columns) {
    constexpr int kHigh = 2 * kSet, kLow = 2 * kSet + 1, kCodes = 4 + kSet;
    TileRegisters::Zero<kHigh>();
    if (!digits.by_turns) TileRegisters::Zero<kLow>();
    for (size_t step = 0; step < digits.steps; ++step) {
      if (digits.steps != 1) digits.Load(step);
      TileRegisters::Load<kCodes>(words + step * (kFactorDepth / 4) * pitch, pitch * 4);
      TileRegisters::AddProducts<kSignedWords, kHigh, 6, kCodes>();
      if (!digits.by_turns) TileRegisters::AddProducts<kSignedWords, kLow, 7, kCodes>();
    }
    const size_t row_bytes = columns * sizeof(int32_t);
    TileRegisters::Store<kHigh>(to, digits.by_turns ? row_bytes : 2 * row_bytes);
    if (!digits.by_turns) TileRegisters::Store<kLow>(to + columns, 2 * row_bytes);
  }

  const CodeFactors<Digits>& factors_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
