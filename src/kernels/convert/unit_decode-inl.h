// Turns codes of a byte each, scales and biases into elements of an engine's tensor, for one SIMD
// target: included once per target. Byte-identical with quant/codec.h.
#if defined(PREFIXD_KERNELS_CONVERT_UNIT_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_UNIT_DECODE_INL_H_
#undef PREFIXD_KERNELS_CONVERT_UNIT_DECODE_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_UNIT_DECODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/convert/half_rows.h"
#include "kernels/convert/unit_step.h"
#include "quant/codec.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// --- rounding: what MLX's products and sums are rounded to (RoundToFloat, RoundToBf16: rows-inl.h)

struct RoundToF16 {
  HWY_INLINE VF operator()(VF value) const {
#if PREFIXD_KERNELS_HAVE_F16C
    return RoundToHalf()(value);
#else
    alignas(64) float lanes[hn::MaxLanes(DF())];
    hn::Store(value, DF(), lanes);
    for (float& lane : lanes) lane = quant::HalfToFloat(quant::FloatToHalf(lane));
    return hn::Load(DF(), lanes);
#endif
  }
};

#if PREFIXD_KERNELS_HAVE_PAIRS
// Rounds to kBits bits after the first one by sums with a number whose last place is the last one
// to keep. Requires: the value is common, see AreCommon(). -0 becomes 0. Instructions for half
// precision wait for each other on a Zen 4, and those for bf16 drop the smallest numbers.
template <int kBits>
HWY_INLINE VF KeepBits(VF value) {
  const DU du;
  const auto power = hn::And(hn::BitCast(du, value), hn::Set(du, 0xff800000));
  const VF large = hn::BitCast(DF(), hn::Add(power, hn::Set(du, (23 - kBits) << 23)));
  return hn::Sub(hn::Add(value, large), large);
}
struct RoundCommonToF16 : RoundToF16 {
  HWY_INLINE VF operator()(VF value) const { return KeepBits<10>(value); }
};
struct RoundCommonToBf16 : RoundToBf16 {
  HWY_INLINE VF operator()(VF value) const { return KeepBits<7>(value); }
};
#endif

// --- where elements go

// Elements are stored two vectors at a time. A vector of 16-bit elements may be half a cache line,
// and a half that is stored past the caches may leave the core as a line of its own.

// kStream: stores past the caches; `to` must then be aligned to two vectors of its elements.
template <bool kStream, class D>
HWY_INLINE void StoreOrStream(hn::Vec<D> elements, D d, std::byte* to) {
  auto* const at = reinterpret_cast<hn::TFromD<D>*>(to);
  if constexpr (kStream) {
    hn::Stream(elements, d, at);
  } else {
    hn::StoreU(elements, d, at);
  }
}

// Both halves of a vector of 16-bit elements.
using DPair = hn::Repartition<uint16_t, DF>;

template <bool kStream>
struct StoreFloats {
  using Common = StoreFloats;  // the same for common values
  using Round = RoundToFloat;
  static constexpr bool kStreams = kStream;
  static constexpr size_t kBytes = 4;
  static HWY_INLINE void Store(VF first, VF second, std::byte* to) {
    StoreOrStream<kStream>(first, DF(), to);
    StoreOrStream<kStream>(second, DF(), to + hn::Lanes(DF()) * kBytes);
  }
};
template <bool kStream>
struct StoreHalves {
  using Common = StoreHalves;
  using Round = RoundToF16;
  static constexpr bool kStreams = kStream;
  static constexpr size_t kBytes = 2;
#if PREFIXD_KERNELS_HAVE_F16C
  static HWY_INLINE hn::Vec<DU16> Bits(VF values) {
    return hn::BitCast(DU16(), hn::DemoteTo(DHalf(), values));
  }
#endif
  static HWY_INLINE void Store(VF first, VF second, std::byte* to) {
#if PREFIXD_KERNELS_HAVE_F16C
    StoreOrStream<kStream>(hn::Combine(DPair(), Bits(second), Bits(first)), DPair(), to);
#else
    alignas(64) float lanes[2 * hn::MaxLanes(DF())];
    hn::Store(first, DF(), lanes);
    hn::Store(second, DF(), lanes + hn::Lanes(DF()));
    quant::NarrowFromFloat(quant::Dtype::kF16, lanes, 2 * hn::Lanes(DF()), to);
#endif
  }
};
#if PREFIXD_KERNELS_HAVE_PAIRS
template <bool kStream>
struct StoreCommonBf16s {
  using Round = RoundToBf16;
  static constexpr bool kStreams = kStream;
  static constexpr size_t kBytes = 2;
  static HWY_INLINE void Store(VF first, VF second, std::byte* to) {
    alignas(64) static constexpr uint16_t kUpperHalves[32] = {
        1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const hn::Vec<DPair> pair{_mm512_permutex2var_epi16(
        InUpperHalves(first).raw, _mm512_load_si512(kUpperHalves), InUpperHalves(second).raw)};
    StoreOrStream<kStream>(pair, DPair(), to);
  }

 private:
  static HWY_INLINE hn::Vec<DU> InUpperHalves(VF value) {
    const DU du;
    const auto bits = hn::BitCast(du, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
  }
};
#endif
template <bool kStream>
struct StoreBf16s {
#if PREFIXD_KERNELS_HAVE_PAIRS
  using Common = StoreCommonBf16s<kStream>;
#endif
  using Round = RoundToBf16;
  static constexpr bool kStreams = kStream;
  static constexpr size_t kBytes = 2;
  static HWY_INLINE hn::Vec<DU16> Bits(VF values) {
    return hn::DemoteTo(DU16(), hn::BitCast(DI(), Bf16Bits(values)));
  }
  static HWY_INLINE void Store(VF first, VF second, std::byte* to) {
    StoreOrStream<kStream>(hn::Combine(DPair(), Bits(second), Bits(first)), DPair(), to);
  }
};

// --- what codes mean

// MLX, and q4_1 and q5_1 with RoundToFloat. Elements does the last rounding if it rounds alike.
template <class Round, class Elements>
struct AffineDecoder {
  using LastRound =
      std::conditional_t<std::is_base_of_v<typename Elements::Round, Round>, RoundToFloat, Round>;
  HWY_INLINE VF Decode(const uint8_t* codes, VF scale, VF bias) const {
    const VF code = hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DU8(), codes)));
    return LastRound()(hn::Add(Round()(hn::Mul(code, scale)), bias));
  }
};
// q4_0, q5_0.
struct CenteredDecoder {
  VF middle;
  HWY_INLINE VF Decode(const uint8_t* codes, VF d, VF) const {
    const VF code = hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DU8(), codes)));
    return hn::Mul(hn::Sub(code, middle), d);
  }
};
// q8_0.
struct SignedDecoder {
  HWY_INLINE VF Decode(const uint8_t* codes, VF d, VF) const {
    const auto bytes = hn::LoadU(DI8(), reinterpret_cast<const int8_t*>(codes));
    return hn::Mul(hn::ConvertTo(DF(), hn::PromoteTo(DI(), bytes)), d);
  }
};

// Bytes that are read after this step. They are asked for evenly while the step is computed: writes
// past the caches leave the core few places to wait for reads.
struct NextBytes {
  const std::byte* first = nullptr;
  size_t count = 0;
};

struct MutableElementRows {
  std::byte* first = nullptr;
  size_t stride = 0;  // bytes from a token to the next
  NextBytes next = {};
};

// scales, biases: [count][groups]; biases are read even if the codec has none.
struct StepFloats {
  const float* scales = nullptr;
  const float* biases = nullptr;
};

// Asks for the part of `next` that goes with token t of the step.
HWY_INLINE void AskBeside(const UnitStep& step, size_t t, const NextBytes& next) {
  const size_t ask = (next.count + step.count - 1) / step.count;
  for (size_t i = 0; i < ask; i += 64) hwy::Prefetch(next.first + t * ask + i);
}

#if PREFIXD_KERNELS_HAVE_PAIRS
// Codes of at most 4 bits: what each of them means in a group is computed once, and looked up.
template <class Elements>
class MeaningOfCodes {
 public:
  // values: of codes 0 to 15
  explicit HWY_INLINE MeaningOfCodes(VF values) {
    if constexpr (Elements::kBytes == 4) {
      values_ = hn::BitCast(DPair(), values);
    } else {
      const auto bits = Elements::Bits(values);
      values_ = hn::Combine(DPair(), bits, bits);
    }
  }
  // Stores two vectors of elements.
  HWY_INLINE void Store(const uint8_t* codes, std::byte* to) const {
    if constexpr (Elements::kBytes == 4) {
      Elements::Store(Find(codes), Find(codes + hn::Lanes(DF())), to);
    } else {
      const auto at = hn::PromoteTo(DPair(), hn::LoadU(hn::Rebind<uint8_t, DPair>(), codes));
      const hn::Vec<DPair> found{_mm512_permutexvar_epi16(at.raw, values_.raw)};
      StoreOrStream<Elements::kStreams>(found, DPair(), to);
    }
  }

 private:
  HWY_INLINE VF Find(const uint8_t* codes) const {
    const VI at = hn::PromoteTo(DI(), hn::LoadU(DU8(), codes));
    return VF{_mm512_permutexvar_ps(at.raw, hn::BitCast(DF(), values_).raw)};
  }

  hn::Vec<DPair> values_;
};

template <class Elements, class Decoder>
HWY_INLINE void LookUpRows(const UnitStep& step, const uint8_t* codes, StepFloats floats,
                           const MutableElementRows& to, const Decoder& decoder) {
  static constexpr uint8_t kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const DF df;
  const size_t dim = step.shape.dim, size = step.shape.format.group_size;
  for (size_t t = 0; t < step.count; ++t) {
    std::byte* out = to.first + t * to.stride;
    AskBeside(step, t, to.next);
    for (size_t begin = 0; begin < dim; begin += size) {
      const VF scale = hn::Set(df, *floats.scales++), bias = hn::Set(df, *floats.biases++);
      const MeaningOfCodes<Elements> meaning(decoder.Decode(kCodes, scale, bias));
      for (size_t e = 0; e < size; e += 2 * hn::Lanes(df)) {
        meaning.Store(codes, out);
        codes += 2 * hn::Lanes(df);
        out += 2 * hn::Lanes(df) * Elements::kBytes;
      }
    }
  }
}

// Whether all products of a code and its scale, and their sums with the bias, are numbers below the
// largest f16, and no bias is -0, which would be seen where a product is -0 too. There is no least
// size: multiples of the least f16 or bf16 that are too small for KeepBits are not to be rounded.
HWY_INLINE bool AreCommon(const UnitStep& step, const StepFloats& floats) {
  const DF df;
  const size_t count = step.count * step.groups();
  if (count < hn::Lanes(df)) return false;
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    const size_t at = HWY_MIN(i, count - hn::Lanes(df));
    const VF scale = hn::LoadU(df, floats.scales + at), bias = hn::LoadU(df, floats.biases + at);
    const auto small =
        hn::And(hn::Le(hn::Abs(scale), hn::Set(df, 64)), hn::Le(hn::Abs(bias), hn::Set(df, 16384)));
    const auto negative_zero = hn::Eq(hn::BitCast(DI(), bias), hn::Set(DI(), INT32_MIN));
    if (!hn::AllTrue(df, hn::AndNot(hn::RebindMask(df, negative_zero), small))) return false;
  }
  return true;
}
#endif

template <class Elements, class Decoder>
HWY_INLINE void ComputeRows(const UnitStep& step, const uint8_t* codes, StepFloats floats,
                            const MutableElementRows& to, const Decoder& decoder) {
  const DF df;
  const size_t dim = step.shape.dim, size = step.shape.format.group_size;
  for (size_t t = 0; t < step.count; ++t) {
    std::byte* out = to.first + t * to.stride;
    AskBeside(step, t, to.next);
    for (size_t begin = 0; begin < dim; begin += size) {
      const VF scale = hn::Set(df, *floats.scales++), bias = hn::Set(df, *floats.biases++);
      for (size_t e = 0; e < size; e += 2 * hn::Lanes(df)) {
        const VF first = decoder.Decode(codes, scale, bias);
        Elements::Store(first, decoder.Decode(codes + hn::Lanes(df), scale, bias), out);
        codes += 2 * hn::Lanes(df);
        out += 2 * hn::Lanes(df) * Elements::kBytes;
      }
    }
  }
}

template <class Elements, class Decoder>
HWY_INLINE void DecodeRows(const UnitStep& step, const uint8_t* codes, const StepFloats& floats,
                           const MutableElementRows& to, const Decoder& decoder) {
#if PREFIXD_KERNELS_HAVE_PAIRS
  if (step.shape.format.bits <= 4) return LookUpRows<Elements>(step, codes, floats, to, decoder);
#endif
  ComputeRows<Elements>(step, codes, floats, to, decoder);
}

template <class Elements>
HWY_INLINE void DecodeTo(const UnitStep& step, const uint8_t* codes, const StepFloats& floats,
                         const MutableElementRows& to) {
  const quant::TensorFormat& format = step.shape.format;
  const VF middle = hn::Set(DF(), format.bits == 5 ? 16.0f : 8.0f);
  switch (format.codec) {
    case quant::Codec::kRaw:
    case quant::Codec::kMxFp4:
    case quant::Codec::kMxFp8:
    case quant::Codec::kNvFp4:
      return;
    case quant::Codec::kMlxAffine:
#if PREFIXD_KERNELS_HAVE_PAIRS
      if (format.bits > 4 && AreCommon(step, floats)) {
        using Common = typename Elements::Common;
        if (format.dtype == quant::Dtype::kF16) {
          return ComputeRows<Common>(step, codes, floats, to,
                                     AffineDecoder<RoundCommonToF16, Common>());
        }
        if (format.dtype == quant::Dtype::kBf16) {
          return ComputeRows<Common>(step, codes, floats, to,
                                     AffineDecoder<RoundCommonToBf16, Common>());
        }
      }
#endif
      if (format.dtype == quant::Dtype::kF16) {
        return DecodeRows<Elements>(step, codes, floats, to, AffineDecoder<RoundToF16, Elements>());
      }
      if (format.dtype == quant::Dtype::kBf16) {
        return DecodeRows<Elements>(step, codes, floats, to,
                                    AffineDecoder<RoundToBf16, Elements>());
      }
      return DecodeRows<Elements>(step, codes, floats, to, AffineDecoder<RoundToFloat, Elements>());
    case quant::Codec::kQ4_1:
    case quant::Codec::kQ5_1:
      return DecodeRows<Elements>(step, codes, floats, to, AffineDecoder<RoundToFloat, Elements>());
    case quant::Codec::kQ4_0:
    case quant::Codec::kQ5_0:
      return DecodeRows<Elements>(step, codes, floats, to, CenteredDecoder{middle});
    case quant::Codec::kQ8_0:
      return ComputeRows<Elements>(step, codes, floats, to, SignedDecoder());
  }
}

// How elements are written.
struct ElementOutput {
  quant::Dtype dtype = quant::Dtype::kF32;
  bool stream = false;  // past the caches: every row is aligned to pairs of vectors
};

template <bool kStream>
HWY_INLINE void DecodeAs(const UnitStep& step, const uint8_t* codes, const StepFloats& floats,
                         quant::Dtype dtype, const MutableElementRows& to) {
  switch (dtype) {
    case quant::Dtype::kF32:
      return DecodeTo<StoreFloats<kStream>>(step, codes, floats, to);
    case quant::Dtype::kF16:
      return DecodeTo<StoreHalves<kStream>>(step, codes, floats, to);
    case quant::Dtype::kBf16:
      return DecodeTo<StoreBf16s<kStream>>(step, codes, floats, to);
  }
}

// Whether DecodeHalfRows may be called.
HWY_INLINE bool DecodesHalves(const quant::TensorFormat& format, quant::Dtype dtype) {
  return PREFIXD_KERNELS_HAVE_PAIRS && format.codec == quant::Codec::kMlxAffine &&
         format.dtype == quant::Dtype::kF16 && dtype == quant::Dtype::kF16 && HaveHalfArithmetic();
}
HWY_INLINE void DecodeHalfRows(const UnitStep& step, const ConstParts& parts, bool stream,
                               const MutableElementRows& to) {
  HalfRow row{.codes = parts.codes,
              .groups = step.groups(),
              .group_size = step.shape.format.group_size,
              .scales = parts.scales,
              .biases = parts.biases};
  for (size_t t = 0; t < step.count; ++t) {
    AskBeside(step, t, to.next);
    DecodeHalfRow(row, stream, to.first + t * to.stride);
    row.codes += step.shape.dim;
    row.scales += row.groups * step.scale_bytes();
    row.biases += row.groups * step.scale_bytes();
  }
}

// Requires: the format has integer codes.
inline HWY_ATTR void DecodeStep(const UnitStep& step, const uint8_t* codes,
                                const StepFloats& floats, const ElementOutput& output,
                                const MutableElementRows& to) {
  output.stream ? DecodeAs<true>(step, codes, floats, output.dtype, to)
                : DecodeAs<false>(step, codes, floats, output.dtype, to);
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
