// Products of codes in tile registers (AMX), a matrix of bytes at once: included once per target.
//
// A 16-bit factor is two digits of a byte, high * 256 + low, each a product of its own with the
// stored codes. All products are exact integers: the result is that of PairProducts, bit for bit.
#if defined(PREFIXD_KERNELS_CODE_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CODE_MATRIX_INL_H_
#undef PREFIXD_KERNELS_CODE_MATRIX_INL_H_
#else
#define PREFIXD_KERNELS_CODE_MATRIX_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/code_strip-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/softmax-inl.h"
#include "kernels/tile_row-inl.h"

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
  static HWY_INLINE void AddSigned() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  static HWY_INLINE void AddUnsignedSigned() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

// Four bytes are four dimensions of a key or four tokens of values. A row of queries or weights is
// its high digits, then its low ones.
class MatrixProducts {
 public:
  using Code = int8_t;  // of a stored element on its way into the tile
  // What one instruction takes of a row.
  static constexpr size_t kDepth = 64;
  static_assert(kTileTokens == kDepth && kStripRows == 16);

  // Whole instructions of keys, pairs of vectors of values.
  static bool Fits(const AttendJob& job) {
    return job.shape.key_dim % kDepth == 0 && job.value_group % 32 == 0;
  }

  HWY_INLINE MatrixProducts(const AttendJob& job, const AttendScratch& scratch)
      : code_(scratch.code),
        query_(reinterpret_cast<std::byte*>(scratch.code.query)),
        keys_(reinterpret_cast<std::byte*>(scratch.code.keys)),
        values_(reinterpret_cast<std::byte*>(scratch.code.values)),
        weights_(reinterpret_cast<std::byte*>(scratch.code.weights)),
        key_pitch_(scratch.key_pitch),
        value_pitch_(scratch.value_pitch),
        key_group_(job.key_group),
        value_group_(job.value_group),
        group_factors_(HWY_MAX(key_group_, kDepth)),
        query_pitch_(key_pitch_ / key_group_ * group_factors_),
        low_(kStripRows * HWY_MAX(size_t{kTileTokens}, value_group_)) {}

  // A group smaller than an instruction has zeros for the other dimensions that one covers.
  HWY_INLINE void StoreQuery(uint32_t row, size_t dimension, VI codes) const {
    std::byte* const group =
        query_ + row * 2 * query_pitch_ + dimension / key_group_ * group_factors_;
    if (key_group_ < kDepth && dimension % key_group_ == 0) {
      _mm512_storeu_si512(group, _mm512_setzero_si512());
      _mm512_storeu_si512(group + query_pitch_, _mm512_setzero_si512());
    }
    std::byte* const to = group + dimension % group_factors_;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm512_cvtepi32_epi8(hn::ShiftRight<8>(codes).raw));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + query_pitch_),
                     _mm512_cvtepi32_epi8(codes.raw));
  }

  HWY_INLINE void LayKeys(uint32_t slot) const {
    TransposeRows(code_.key_rows, key_pitch_ / 4, key_pitch_ / 4, code_.keys + slot, kTileTokens);
  }
  HWY_INLINE void LayValues(uint32_t slot) const {
    const size_t pitch = value_pitch_;  // a local: stores could change a member
    const auto* rows = reinterpret_cast<const uint8_t*>(code_.value_rows);
    int32_t* to = code_.values + slot / 4 * pitch;
    for (uint32_t t = 0; t < kStepTokens; t += 4, rows += 4 * pitch, to += pitch) {
      for (size_t i = 0; i < pitch; i += hn::Lanes(DU())) {
        const auto v0 = Widened(rows + i);
        const auto v1 = hn::ShiftLeft<8>(Widened(rows + pitch + i));
        const auto v2 = hn::ShiftLeft<16>(Widened(rows + 2 * pitch + i));
        const auto v3 = hn::ShiftLeft<24>(Widened(rows + 3 * pitch + i));
        hn::StoreU(hn::BitCast(DI(), hn::Or(hn::Or(v0, v1), hn::Or(v2, v3))), DI(), to + i);
      }
    }
  }
  HWY_INLINE void FinishTile() const {}

  HWY_INLINE void MultiplyKeys(const CodeStrip& strip, size_t group) const {
    constexpr size_t kPitch = kTileTokens * sizeof(int32_t);
    for (size_t token = 0; token < kTileTokens; token += 32) {
      ZeroDots();
      for (size_t step = 0; step < group_factors_; step += kDepth) {
        const size_t dimension = group * key_group_ / kDepth * kDepth + step;
        LoadFactors(query_ + strip.first * 2 * query_pitch_ + group * group_factors_ + step,
                    2 * query_pitch_, query_pitch_);
        LoadCodes(keys_ + dimension / 4 * kPitch + token * sizeof(int32_t), kPitch);
        TileRegisters::AddSigned<0, 4, 6>();
        TileRegisters::AddSigned<1, 4, 7>();
        AddLowDigits();
      }
      StoreDots(token, kTileTokens);
    }
  }
  HWY_INLINE void MultiplyValues(const CodeStrip& /*strip*/, size_t group) const {
    for (size_t d = 0; d < value_group_; d += 32) {
      ZeroDots();
      LoadFactors(WeightsOf(group, 0), 2 * kTileTokens, kTileTokens);
      LoadCodes(values_ + (group * value_group_ + d) * sizeof(int32_t),
                value_pitch_ * sizeof(int32_t));
      TileRegisters::AddUnsignedSigned<0, 4, 6>();
      TileRegisters::AddUnsignedSigned<1, 4, 7>();
      AddLowDigits();
      StoreDots(d, value_group_);
    }
  }
  class Dots {
   public:
    explicit HWY_INLINE Dots(const MatrixProducts& products)
        : high_(products.code_.dots), low_(high_ + products.low_) {}
    HWY_INLINE VF From(size_t at) const {
      const VI high = hn::ShiftLeft<8>(hn::LoadU(DI(), high_ + at));
      return hn::ConvertTo(DF(), hn::Add(high, hn::LoadU(DI(), low_ + at)));
    }

   private:
    const int32_t* const high_;
    const int32_t* const low_;
  };

  HWY_INLINE void StoreWeights(size_t group, uint32_t row, const TileRow64& weights) const {
    std::byte* to = WeightsOf(group, row);
    const __m512i low = weights.PackedLow(), high = weights.PackedHigh();
    const __m512i low_digits = LowDigitsInOrder();
    const __m512i high_digits = _mm512_or_si512(low_digits, _mm512_set1_epi8(1));
    _mm512_storeu_si512(to, _mm512_permutex2var_epi8(low, high_digits, high));
    _mm512_storeu_si512(to + kTileTokens, _mm512_permutex2var_epi8(low, low_digits, high));
  }

 private:
  static HWY_INLINE hn::Vec<DU> Widened(const uint8_t* from) {
    return hn::PromoteTo(DU(), hn::LoadU(DU8(), from));
  }
  HWY_INLINE std::byte* WeightsOf(size_t group, uint32_t row) const {
    return weights_ + (group * kStripRows + row) * 2 * kTileTokens;
  }
  // Registers: 0, 1 dots of high digits, 2, 3 of low ones; 4, 5 the factors' digits; 6, 7 codes.
  static HWY_INLINE void ZeroDots() {
    TileRegisters::Zero<0>();
    TileRegisters::Zero<1>();
    TileRegisters::Zero<2>();
    TileRegisters::Zero<3>();
  }
  static HWY_INLINE void LoadFactors(const std::byte* high, size_t pitch, size_t low) {
    TileRegisters::Load<4>(high, pitch);
    TileRegisters::Load<5>(high + low, pitch);
  }
  static HWY_INLINE void LoadCodes(const std::byte* codes, size_t pitch) {
    TileRegisters::Load<6>(codes, pitch);
    TileRegisters::Load<7>(codes + 64, pitch);
  }
  static HWY_INLINE void AddLowDigits() {
    TileRegisters::AddUnsignedSigned<2, 5, 6>();
    TileRegisters::AddUnsignedSigned<3, 5, 7>();
  }
  HWY_INLINE void StoreDots(size_t column, size_t columns) const {
    int32_t* to = code_.dots + column;
    const size_t pitch = columns * sizeof(int32_t);
    TileRegisters::Store<0>(to, pitch);
    TileRegisters::Store<1>(to + 16, pitch);
    TileRegisters::Store<2>(to + low_, pitch);
    TileRegisters::Store<3>(to + low_ + 16, pitch);
  }
  // Where the low bytes of tokens 0, 1, ... stand in PackedLow() and, 64 bytes on, PackedHigh().
  static HWY_INLINE __m512i LowDigitsInOrder() {
    alignas(64) static constexpr uint8_t kOrder[64] = {
        0,  2,  4,  6,  16, 18, 20, 22, 32,  34,  36,  38,  48,  50,  52,  54,
        8,  10, 12, 14, 24, 26, 28, 30, 40,  42,  44,  46,  56,  58,  60,  62,
        64, 66, 68, 70, 80, 82, 84, 86, 96,  98,  100, 102, 112, 114, 116, 118,
        72, 74, 76, 78, 88, 90, 92, 94, 104, 106, 108, 110, 120, 122, 124, 126};
    return _mm512_load_si512(kOrder);
  }

  const CodeScratch& code_;
  std::byte* const query_;
  std::byte* const keys_;
  std::byte* const values_;
  std::byte* const weights_;
  const size_t key_pitch_;
  const size_t value_pitch_;
  const size_t key_group_;
  const size_t value_group_;
  const size_t group_factors_;  // of a query row for one group of keys
  const size_t query_pitch_;    // of one digit
  const size_t low_;            // where dots of low digits begin
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
