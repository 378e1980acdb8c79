// The factors that codes are multiplied with, and the products, for one SIMD target: included once
// per target.
//
// A stored code is a byte. A query element or a weight is an integer of one digit or of two, high *
// 256 + low. Each digit is a row of bytes of its own. Instructions that add four products of bytes,
// one side of which is unsigned, multiply it with the codes. All of it is exact: the integers are
// the same whichever instructions compute them.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_FACTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_FACTORS_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_FACTORS_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_FACTORS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/store_codes-inl.h"
#include "kernels/common/tile_row-inl.h"
#include "kernels/prefill/attend_slice.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Two digits are 15 bits and a sign. One digit is 7 bits and a sign in queries, 8 bits in weights:
// values are then the signed side, and their scales are made positive.
template <size_t kDigits>
struct Digits {
  static constexpr size_t kCount = kDigits;
  static constexpr bool kSignedValues = kCount == 1;
  // The largest query code whose high digit, rounded, is a byte.
  static constexpr float kQueryLimit = kCount == 1 ? 127 : 127 * 256 + 127;
  // The limit of two digits leaves room: the largest weight is estimated and may be a little more.
  static constexpr float kWeightLimit = kCount == 1 ? 255 : 32600;
};
inline constexpr float kCodeMiddle = 128;
// Bytes of a row that an instruction of a tile register takes. Groups are padded to it with zeros.
inline constexpr size_t kFactorDepth = 64;
static_assert(kTileTokens == kFactorDepth);

// Keys of a tile: words of four channels of one token, [half of 32 tokens][key_dim / 4][token].
struct KeyWords {
  static constexpr size_t kTokens = 32;
  const uint32_t* half[kTileTokens / kTokens] = {nullptr, nullptr};
  // True if words are as stored: one is eight channels, the first four in the low nibbles.
  bool nibbles = false;
};
// Values of a tile: words of four tokens of one channel, [group][token / 4][channel].
struct ValueWords {
  const uint32_t* words = nullptr;
  size_t quad_pitch = 0;      // from four tokens to the next four
  size_t group_pitch = 0;     // from a stored group to the next
  size_t groups_a_group = 1;  // groups of the job in a stored group
  // True if words are as stored: one is two channels, 16 are 32 channels. Pitches count words.
  bool nibbles = false;

  HWY_INLINE const uint32_t* OfGroup(size_t group, size_t value_group) const {
    const size_t group_words = nibbles ? value_group / 2 : value_group;
    return words + group / groups_a_group * group_pitch + group % groups_a_group * group_words;
  }
};

template <class Digits>
class CodeFactors {
 public:
  HWY_INLINE CodeFactors(const AttendJob& job, const AttendScratch& scratch)
      : code_(scratch.code),
        key_group_(job.key_group),
        value_group_(job.value_group),
        group_factors_(HWY_MAX(key_group_, kFactorDepth)),
        query_pitch_(job.shape.key_dim / key_group_ * group_factors_) {}

  // Stores the codes of 16 elements of a query.
  HWY_INLINE void StoreQuery(uint32_t row, size_t dimension, VI codes) const {
    int8_t* const group = code_.query + row * Digits::kCount * query_pitch_ + GroupOf(dimension);
    if (key_group_ < kFactorDepth && dimension % key_group_ == 0) {
      for (size_t digit = 0; digit < Digits::kCount; ++digit) {
        _mm512_storeu_si512(group + digit * query_pitch_, _mm512_setzero_si512());
      }
    }
    int8_t* to = group + dimension % group_factors_;
    if constexpr (Digits::kCount == 2) {
      const VI high = hn::ShiftRight<8>(hn::Add(codes, hn::Set(DI(), 128)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(high.raw));
      to += query_pitch_;
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(codes.raw));
  }

  // Stores the nearest integers of 0 to 255.
  HWY_INLINE void StoreBytes(size_t group, uint32_t row, const TileRow64& weights) const {
    StoreUnsignedQuad(NearestOfSmall(weights.v0), NearestOfSmall(weights.v1),
                      NearestOfSmall(weights.v2), NearestOfSmall(weights.v3), 255,
                      reinterpret_cast<uint8_t*>(WeightsOf(group, row)));
  }

  // Stores the nearest integers, of two digits. Returns their sum across the vectors.
  HWY_INLINE VI StoreDigits(size_t group, uint32_t row, const TileRow64& weights) const {
    const __m512i w0 = _mm512_cvtps_epi32(weights.v0.raw), w1 = _mm512_cvtps_epi32(weights.v1.raw);
    const __m512i w2 = _mm512_cvtps_epi32(weights.v2.raw), w3 = _mm512_cvtps_epi32(weights.v3.raw);
    const __m512i early = _mm512_packs_epi32(w0, w1), late = _mm512_packs_epi32(w2, w3);
    const __m512i half = _mm512_set1_epi16(128);
    const __m512i low_digits = LowDigitsInOrder();
    const __m512i high_digits = _mm512_or_si512(low_digits, _mm512_set1_epi8(1));
    int8_t* to = WeightsOf(group, row);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi8(_mm512_adds_epi16(early, half), high_digits,
                                                     _mm512_adds_epi16(late, half)));
    _mm512_storeu_si512(to + kTileTokens, _mm512_permutex2var_epi8(early, low_digits, late));
    return VI{_mm512_add_epi32(_mm512_add_epi32(w0, w1), _mm512_add_epi32(w2, w3))};
  }

  // Returns the highest digits. The next ones follow query_pitch() bytes later, then the next row.
  HWY_INLINE const int8_t* QueryOf(uint32_t row, size_t group) const {
    return code_.query + row * Digits::kCount * query_pitch_ + group * group_factors_;
  }
  HWY_INLINE size_t query_pitch() const { return query_pitch_; }
  HWY_INLINE size_t group_factors() const { return group_factors_; }
  // Returns where a group's first channel stands in its padded factors, after zeros.
  HWY_INLINE size_t FirstFactorOf(size_t group) const {
    return group * key_group_ % group_factors_;
  }
  // [kStripRows][digits][kTileTokens]
  HWY_INLINE int8_t* WeightsOf(size_t group, uint32_t row) const {
    return code_.weights + (group * kStripRows + row) * Digits::kCount * kTileTokens;
  }

  HWY_INLINE size_t key_group() const { return key_group_; }
  HWY_INLINE size_t value_group() const { return value_group_; }
  HWY_INLINE int32_t* dots() const { return code_.dots; }

 private:
  HWY_INLINE size_t GroupOf(size_t dimension) const {
    return dimension / key_group_ * group_factors_;
  }
  // Returns where the low bytes of tokens 0, 1, ... stand in packed vectors 0 and 1 and, 64 bytes
  // later, in packed vectors 2 and 3.
  static HWY_INLINE __m512i LowDigitsInOrder() {
    alignas(64) static constexpr uint8_t kOrder[64] = {
        0,  2,  4,  6,  16, 18, 20, 22, 32,  34,  36,  38,  48,  50,  52,  54,
        8,  10, 12, 14, 24, 26, 28, 30, 40,  42,  44,  46,  56,  58,  60,  62,
        64, 66, 68, 70, 80, 82, 84, 86, 96,  98,  100, 102, 112, 114, 116, 118,
        72, 74, 76, 78, 88, 90, 92, 94, 104, 106, 108, 110, 120, 122, 124, 126};
    return _mm512_load_si512(kOrder);
  }

  const CodeScratch& code_;
  const size_t key_group_;
  const size_t value_group_;
  const size_t group_factors_;  // bytes of a query row's digit for one key group
  const size_t query_pitch_;    // bytes of a query row's digit
};

// Products of a strip as the instructions left them: [row][digit][columns]. Keep it in a local
// variable: stores could change a member.
template <class Digits>
class CodeDots {
 public:
  HWY_INLINE CodeDots(const int32_t* dots, size_t columns) : dots_(dots), columns_(columns) {}
  // Returns 16 products of a row.
  HWY_INLINE VF From(size_t row, size_t column) const {
    const int32_t* from = dots_ + row * Digits::kCount * columns_ + column;
    VI sum = hn::LoadU(DI(), from);
    if constexpr (Digits::kCount == 2) {
      sum = hn::Add(hn::ShiftLeft<8>(sum), hn::LoadU(DI(), from + columns_));
    }
    return hn::ConvertTo(DF(), sum);
  }

 private:
  const int32_t* const dots_;
  const size_t columns_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
