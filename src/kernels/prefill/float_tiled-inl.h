// Tiled units as floats, for one SIMD target: included once per target.
//
// Each element goes through the same operations as in layout rows: the same bits.
#if defined(PREFIXD_KERNELS_PREFILL_FLOAT_TILED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_FLOAT_TILED_INL_H_
#undef PREFIXD_KERNELS_PREFILL_FLOAT_TILED_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_FLOAT_TILED_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "quant/tiled.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// What the codec has before scaling: q8_0's signed codes, q4_0's less 8, the codes of the others.
enum class TiledKind { kBytes, kNibbles, kQ8_0, kQ4_0 };

// Reads the codes of a vector of words. kKind is known when this is compiled, so that each code
// costs a shift and a mask of constants: they are most of the work.
template <TiledKind kKind>
struct WordCodes {
  static constexpr bool kNibbles = kKind == TiledKind::kNibbles || kKind == TiledKind::kQ4_0;
  static constexpr bool kBiased = kKind == TiledKind::kBytes || kKind == TiledKind::kNibbles;
  static constexpr size_t kCount = kNibbles ? 8 : 4;  // in a word

  // Calls `call(i, codes)` for each byte i of the words; of nibbles for the low ones, then with
  // i = 4 + byte for the high ones.
  template <class Call>
  static HWY_INLINE void ForEach(hn::Vec<DU> words, const Call& call) {
    call(0, At<0>(words));
    call(1, At<8>(words));
    call(2, At<16>(words));
    call(3, At<24>(words));
    if constexpr (kNibbles) {
      call(4, At<4>(words));
      call(5, At<12>(words));
      call(6, At<20>(words));
      call(7, At<28>(words));
    }
  }
  static HWY_INLINE VF Apply(VF code, VF scale, VF bias) {
    const VF product = hn::Mul(code, scale);
    return kBiased ? hn::Add(product, bias) : product;
  }

 private:
  template <int kShift>
  static HWY_INLINE VF At(hn::Vec<DU> words) {
    constexpr int kBits = kNibbles ? 4 : 8;
    if constexpr (kKind == TiledKind::kQ8_0) {
      const VI high = hn::BitCast(DI(), hn::ShiftLeft<24 - kShift>(words));
      return hn::ConvertTo(DF(), hn::ShiftRight<24>(high));  // with its sign
    }
    auto codes = hn::ShiftRight<kShift>(words);
    if (kShift + kBits < 32) codes = hn::And(codes, hn::Set(DU(), (1u << kBits) - 1));
    const VF code = hn::ConvertTo(DF(), hn::BitCast(DI(), codes));
    return kKind == TiledKind::kQ4_0 ? hn::Sub(code, hn::Set(DF(), 8.0f)) : code;
  }
};
// Calls `call` with the WordCodes of a format.
template <class Call>
HWY_INLINE void WithWordCodes(const quant::TensorFormat& format, const Call& call) {
  if (format.codec == quant::Codec::kQ8_0) return call(WordCodes<TiledKind::kQ8_0>());
  if (format.codec == quant::Codec::kQ4_0) return call(WordCodes<TiledKind::kQ4_0>());
  if (format.bits == 4) return call(WordCodes<TiledKind::kNibbles>());
  call(WordCodes<TiledKind::kBytes>());
}

// Reads single codes, of any of these formats.
class TiledCodes {
 public:
  explicit HWY_INLINE TiledCodes(const quant::TensorFormat& format)
      : nibbles_(format.bits == 4),
        signs_(format.codec == quant::Codec::kQ8_0 ? 0x80 : 0),
        middle_(format.codec == quant::Codec::kQ8_0   ? 128.0f
                : format.codec == quant::Codec::kQ4_0 ? 8.0f
                                                      : 0.0f) {}

  HWY_INLINE float Of(std::byte byte, uint32_t shift) const {
    const uint32_t code = std::to_integer<uint32_t>(byte) >> shift & (nibbles_ ? 0xfu : 0xffu);
    return static_cast<float>(code ^ signs_) - middle_;
  }

 private:
  const bool nibbles_;
  const uint32_t signs_;
  const float middle_;
};

// Parameters of 16 tokens of a group. Not `biased`: the codec has no biases, and not even 0 is
// added.
struct TiledParameters {
  alignas(64) float scales[kStepTokens];
  alignas(64) float biases[kStepTokens];
  bool biased = false;

  HWY_INLINE void Load(const RowRange& rows, size_t group) {
    const quant::TensorFormat& format = *rows.format;
    const size_t at = (group * rows.layout.slots + rows.first) * quant::DtypeBytes(format.dtype);
    Widen(format.dtype, rows.unit + rows.layout.scales_offset + at, rows.count, scales);
    biased = rows.row.biases != 0;
    if (!biased) return;
    Widen(format.dtype, rows.unit + rows.layout.biases_offset + at, rows.count, biases);
  }
  HWY_INLINE float Apply(float code, size_t token) const {
    const float product = code * scales[token];
    return biased ? product + biases[token] : product;
  }
};

// Whether `rows` are 16 slots that vectors can load side by side.
HWY_INLINE bool WholeStep(const RowRange& rows) {
  return rows.count == kStepTokens && rows.first % kStepTokens == 0;
}

// Writes 16 tokens of keys to `to` [dim][to_pitch], one column for each token.
template <class Codes>
HWY_INLINE void KeySteps(const RowRange& rows, float* to, size_t to_pitch) {
  const uint64_t tile = rows.first / quant::kTileSlots * quant::kTileSlots;
  const uint64_t pitch = HWY_MIN(uint64_t{quant::kTileSlots}, rows.layout.slots - tile);
  const auto* words = reinterpret_cast<const uint32_t*>(rows.unit + rows.layout.codes_offset) +
                      tile * (rows.dim / Codes::kCount) + rows.first % quant::kTileSlots;
  TiledParameters parameters;
  for (size_t d = 0; d < rows.dim; d += Codes::kCount, words += pitch) {
    if (d % rows.format->group_size == 0) parameters.Load(rows, d / rows.format->group_size);
    for (size_t t = 0; t < kStepTokens; t += hn::Lanes(DF())) {
      const VF scale = hn::LoadU(DF(), parameters.scales + t);
      const VF bias = hn::LoadU(DF(), parameters.biases + t);
      float* const columns = to + d * to_pitch + t;
      Codes::ForEach(hn::LoadU(DU(), words + t), [&](size_t c, VF code) HWY_ATTR {
        hn::StoreU(Codes::Apply(code, scale, bias), DF(), columns + c * to_pitch);
      });
    }
  }
}
HWY_INLINE void TiledKeySteps(const RowRange& rows, float* to, size_t to_pitch) {
  WithWordCodes(*rows.format,
                [&](auto codes) HWY_ATTR { KeySteps<decltype(codes)>(rows, to, to_pitch); });
}

// Writes 16 tokens of values to `to` [16][pitch], one row for each token.
template <class Codes>
HWY_INLINE void ValueSteps(const RowRange& rows, float* to, size_t pitch) {
  constexpr size_t kLaneWords = quant::kValueLanes;
  const size_t group = rows.format->group_size;
  const size_t quad_words = group * 4 / Codes::kCount;  // of 4 tokens
  const auto* words = reinterpret_cast<const uint32_t*>(rows.unit + rows.layout.codes_offset);
  for (size_t g = 0; g < rows.dim / group; ++g) {
    TiledParameters parameters;
    parameters.Load(rows, g);
    const uint32_t* quad = words + (g * rows.layout.slots + rows.first) / 4 * quad_words;
    for (size_t t = 0; t < kStepTokens; t += 4, quad += quad_words) {
      for (size_t w = 0; w < quad_words; w += hn::Lanes(DF())) {
        // A run of kValueLanes words has their low nibbles' channels, then those of the high ones.
        const size_t channel = w / kLaneWords * (Codes::kCount / 4) * kLaneWords + w % kLaneWords;
        float* const rows_to = to + t * pitch + g * group + channel;
        Codes::ForEach(hn::LoadU(DU(), quad + w), [&](size_t i, VF code) HWY_ATTR {
          const VF scale = hn::Set(DF(), parameters.scales[t + i % 4]);
          const VF bias = hn::Set(DF(), parameters.biases[t + i % 4]);
          hn::StoreU(Codes::Apply(code, scale, bias), DF(),
                     rows_to + i % 4 * pitch + i / 4 * kLaneWords);
        });
      }
    }
  }
}
HWY_INLINE void TiledValueSteps(const RowRange& rows, float* to, size_t pitch) {
  WithWordCodes(*rows.format,
                [&](auto codes) HWY_ATTR { ValueSteps<decltype(codes)>(rows, to, pitch); });
}

// Writes any tokens one element at a time, each to element(token of the range, channel).
template <typename Element>
HWY_INLINE void TiledElements(const RowRange& rows, const quant::TiledPlaces& places,
                              const Element& element) {
  const TiledCodes codes(*rows.format);
  const size_t group = rows.format->group_size;
  TiledParameters parameters;
  for (uint32_t c = 0; c < rows.dim; ++c) {
    if (c % group == 0) parameters.Load(rows, c / group);
    for (uint32_t t = 0; t < rows.count; ++t) {
      const std::byte byte = rows.unit[places.ByteOf(rows.first + t, c)];
      *element(t, c) = parameters.Apply(codes.Of(byte, places.ShiftOf(c)), t);
    }
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
