// Stored rows as bytes of full range, for one SIMD target: included once per target.
//
// Whatever its codec and width, an element is scale * byte + bias.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_ROWS_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_ROWS_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/blocks-inl.h"
#include "quant/tiled.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Returns whether codes of ggml or MLX have biases. Codes without biases are symmetric.
HWY_INLINE bool HasBiases(quant::Codec codec) {
  return codec == quant::Codec::kMlxAffine || codec == quant::Codec::kQ4_1 ||
         codec == quant::Codec::kQ5_1;
}
HWY_INLINE int RangeShift(const quant::TensorFormat& format) { return 8 - format.bits; }

// Returns the XOR mask that makes bytes unsigned: q8_0's are signed, others are not.
HWY_INLINE uint32_t SignsOf(const quant::TensorFormat& format) {
  return format.codec == quant::Codec::kQ8_0 ? 0x80808080u : 0u;
}

// Widens MLX's 4-bit codes, 32 at a time. Even codes are in the low nibbles.
HWY_INLINE void WidenNibbles(const std::byte* from, size_t count, uint8_t* to) {
  for (size_t i = 0; i < count; i += 32, from += 16) {
    const __m256i pairs =
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m256i even = _mm256_and_si256(_mm256_slli_epi16(pairs, 4), _mm256_set1_epi16(0x00f0));
    const __m256i odd = _mm256_and_si256(_mm256_slli_epi16(pairs, 8),
                                         _mm256_set1_epi16(static_cast<short>(0xf000)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_or_si256(even, odd));
  }
}

HWY_INLINE void WidenAffineRow(const RowRange& rows, const std::byte* from, uint8_t* unpacked,
                               uint8_t* to) {
  if (rows.format->bits == 8) {
    std::memcpy(to, from, rows.dim);
    return;
  }
  if (rows.format->bits == 4) return WidenNibbles(from, rows.dim, to);
  const uint8_t* codes = AffineCodes(rows.format->bits, from, rows.dim, unpacked);
  const int shift = RangeShift(*rows.format);
  for (size_t i = 0; i < rows.dim; ++i) to[i] = static_cast<uint8_t>(codes[i] << shift);
}

// Widens the 32 codes of a ggml block, which follow its scale (and minimum). Low nibbles are the
// first half, high nibbles the second; fifth bits stand before them.
HWY_INLINE void WidenBlock(const quant::TensorFormat& format, const std::byte* from, uint8_t* to) {
  if (format.bits == 8) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i signs = _mm256_set1_epi8(static_cast<char>(0x80));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_xor_si256(codes, signs));
    return;
  }
  const bool fifth = format.bits == 5;
  uint32_t high_bits = 0;
  if (fifth) std::memcpy(&high_bits, from, sizeof(high_bits));
  const __m128i nibbles =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + (fifth ? sizeof(high_bits) : 0)));
  const __m128i mask = _mm_set1_epi8(static_cast<char>(0xf0));
  const __m256i codes = _mm256_set_m128i(_mm_and_si128(nibbles, mask),
                                         _mm_and_si128(_mm_slli_epi16(nibbles, 4), mask));
  __m256i wide = codes;
  if (fifth) {
    wide = _mm256_and_si256(_mm256_srli_epi16(codes, 1), _mm256_set1_epi8(0x78));
    const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
    wide = _mm256_or_si256(wide, _mm256_maskz_mov_epi8(high_bits, top));
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), wide);
}

// unpacked: working memory, [dim].
HWY_INLINE void WidenRow(const RowRange& rows, const std::byte* from, uint8_t* unpacked,
                         uint8_t* to) {
  const quant::TensorFormat& format = *rows.format;
  if (format.codec == quant::Codec::kMlxAffine) return WidenAffineRow(rows, from, unpacked, to);
  const size_t block_bytes = rows.row.codes / (rows.dim / 32);
  const size_t parameters = HasBiases(format.codec) ? 4 : 2;
  for (size_t d = 0; d < rows.dim; d += 32, from += block_bytes) {
    WidenBlock(format, from + parameters, to + d);
  }
}

// Widens one token of a tiled unit, for tokens whose slots do not line up with the tile.
inline HWY_ATTR void WidenTiledRow(const quant::TiledPlaces& places, const RowRange& rows,
                                   uint32_t token, uint8_t* to) {
  const uint32_t signs = SignsOf(*rows.format) & 0xff;
  const uint32_t mask = rows.format->bits == 4 ? 0xf0 : 0xff;
  for (uint32_t c = 0; c < rows.dim; ++c) {
    const uint32_t byte = std::to_integer<uint32_t>(rows.unit[places.ByteOf(token, c)]);
    const uint32_t up = rows.format->bits == 4 ? 4 - places.ShiftOf(c) : 0;
    to[c] = static_cast<uint8_t>((byte << up & mask) ^ signs);
  }
}

// Scales and biases of one group of up to 16 tokens.
struct GroupParameters {
  VF scales, biases;
};

// Converts stored scales and biases to those of bytes of full range; the bias is that of byte 0, or
// 128 if kOfMiddle. Made once for a tile: the divisions would cost more than the rest.
template <bool kOfMiddle>
class ByteMeaning {
 public:
  explicit HWY_INLINE ByteMeaning(const quant::TensorFormat& format)
      : biased_(HasBiases(format.codec)),
        middle_(hn::Set(DF(), static_cast<float>(1 << (format.bits - 1)))),
        one_(hn::Set(DF(), 1.0f / static_cast<float>(1 << RangeShift(format)))) {}

  HWY_INLINE bool biased() const { return biased_; }
  HWY_INLINE GroupParameters Of(const GroupParameters& stored) const {
    VF biases = biased_ ? stored.biases : hn::Neg(hn::Mul(stored.scales, middle_));
    if (kOfMiddle) biases = hn::MulAdd(stored.scales, middle_, biases);
    return {hn::Mul(stored.scales, one_), biases};
  }

 private:
  const bool biased_;
  const VF middle_, one_;
};

// Returns a group's parameters in layout rows, of tokens rows.first ... MLX's must be in `widened`.
HWY_INLINE GroupParameters RowParameters(const RowRange& rows, const RowScratch& widened,
                                         size_t group) {
  const DF df;
  const size_t groups = rows.dim / rows.format->group_size;
  if (rows.format->codec == quant::Codec::kMlxAffine) {
    const VI token = hn::Mul(hn::Iota(DI(), 0), hn::Set(DI(), static_cast<int32_t>(groups)));
    return {hn::GatherIndex(df, widened.scales + group, token),
            hn::GatherIndex(df, widened.biases + group, token)};
  }
  const size_t block = rows.row.codes / groups;
  const std::byte* from =
      rows.unit + rows.layout.codes_offset + size_t{rows.first} * rows.row.codes + group * block;
  const VI offsets =
      hn::Mul(hn::Iota(DI(), 0), hn::Set(DI(), static_cast<int32_t>(rows.row.codes)));
  const __m512i words =
      _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), hn::FirstN(DI(), rows.count).raw,
                                  offsets.raw, reinterpret_cast<const int*>(from), 1);
  return {VF{_mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))},
          VF{_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)))}};
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
