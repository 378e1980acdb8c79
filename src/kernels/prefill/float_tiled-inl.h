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

// Reads codes of 8 or 4 bits as the codec has them before scaling: q8_0's signed, q4_0's less 8.
class TiledCodes {
 public:
  explicit HWY_INLINE TiledCodes(const quant::TensorFormat& format)
      : nibbles_(format.bits == 4),
        signs_(format.codec == quant::Codec::kQ8_0 ? 0x80 : 0),
        middle_(format.codec == quant::Codec::kQ8_0   ? 128.0f
                : format.codec == quant::Codec::kQ4_0 ? 8.0f
                                                      : 0.0f) {}

  // Returns the codes in byte `byte` of each word, or in one of its nibbles.
  HWY_INLINE VF Of(hn::Vec<DU> words, int byte, bool high_nibble) const {
    const DU du;
    const auto bytes = hn::ShiftRightSame(words, 8 * byte + (high_nibble ? 4 : 0));
    const auto codes = hn::And(bytes, hn::Set(du, nibbles_ ? 0xfu : 0xffu));
    const VI unsigned_codes = hn::BitCast(DI(), hn::Xor(codes, hn::Set(du, signs_)));
    return hn::Sub(hn::ConvertTo(DF(), unsigned_codes), hn::Set(DF(), middle_));
  }
  HWY_INLINE float Of(std::byte byte, uint32_t shift) const {
    const uint32_t code = std::to_integer<uint32_t>(byte) >> shift & (nibbles_ ? 0xfu : 0xffu);
    return static_cast<float>(code ^ signs_) - middle_;
  }
  HWY_INLINE bool nibbles() const { return nibbles_; }

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
  HWY_INLINE VF Apply(VF code, VF scale, VF bias) const {
    const VF product = hn::Mul(code, scale);
    return biased ? hn::Add(product, bias) : product;
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
HWY_INLINE void TiledKeySteps(const RowRange& rows, float* to, size_t to_pitch) {
  const TiledCodes codes(*rows.format);
  const size_t channels_a_word = codes.nibbles() ? 8 : 4;
  const uint64_t tile = rows.first / quant::kTileSlots * quant::kTileSlots;
  const uint64_t pitch = HWY_MIN(uint64_t{quant::kTileSlots}, rows.layout.slots - tile);
  const auto* words = reinterpret_cast<const uint32_t*>(rows.unit + rows.layout.codes_offset) +
                      tile * (rows.dim / channels_a_word) + rows.first % quant::kTileSlots;
  TiledParameters parameters;
  for (size_t d = 0; d < rows.dim; d += channels_a_word, words += pitch) {
    if (d % rows.format->group_size == 0) parameters.Load(rows, d / rows.format->group_size);
    for (size_t t = 0; t < kStepTokens; t += hn::Lanes(DF())) {
      const auto word = hn::LoadU(DU(), words + t);
      const VF scale = hn::LoadU(DF(), parameters.scales + t);
      const VF bias = hn::LoadU(DF(), parameters.biases + t);
      for (size_t c = 0; c < channels_a_word; ++c) {
        const VF code = codes.Of(word, static_cast<int>(c % 4), c >= 4);
        hn::StoreU(parameters.Apply(code, scale, bias), DF(), to + (d + c) * to_pitch + t);
      }
    }
  }
}

// Writes 16 tokens of values to `to` [16][pitch], one row for each token.
HWY_INLINE void TiledValueSteps(const RowRange& rows, float* to, size_t pitch) {
  const TiledCodes codes(*rows.format);
  const size_t group = rows.format->group_size;
  const size_t run = codes.nibbles() ? 2 * quant::kValueLanes : quant::kValueLanes;
  const size_t quad_words = codes.nibbles() ? group / 2 : group;
  const auto* unit = reinterpret_cast<const uint32_t*>(rows.unit + rows.layout.codes_offset);
  for (size_t g = 0; g < rows.dim / group; ++g) {
    TiledParameters parameters;
    parameters.Load(rows, g);
    const uint32_t* words = unit + (g * rows.layout.slots + rows.first) / 4 * quad_words;
    for (size_t t = 0; t < kStepTokens; ++t) {
      const VF scale = hn::Set(DF(), parameters.scales[t]);
      const VF bias = hn::Set(DF(), parameters.biases[t]);
      for (size_t c = 0; c < group; c += hn::Lanes(DF())) {
        const size_t lane = c % quant::kValueLanes;
        const auto word =
            hn::LoadU(DU(), words + t / 4 * quad_words + c / run * quant::kValueLanes + lane);
        const bool high = c % run >= quant::kValueLanes;
        const VF code = codes.Of(word, static_cast<int>(t % 4), high);
        hn::StoreU(parameters.Apply(code, scale, bias), DF(), to + t * pitch + g * group + c);
      }
    }
  }
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
