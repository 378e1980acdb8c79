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
  using Round = RoundToFloat;
  static constexpr size_t kBytes = 4;
  static HWY_INLINE void Store(VF first, VF second, std::byte* to) {
    StoreOrStream<kStream>(first, DF(), to);
    StoreOrStream<kStream>(second, DF(), to + hn::Lanes(DF()) * kBytes);
  }
};
template <bool kStream>
struct StoreHalves {
  using Round = RoundToF16;
  static constexpr size_t kBytes = 2;
  static HWY_INLINE void Store(VF first, VF second, std::byte* to) {
#if PREFIXD_KERNELS_HAVE_F16C
    const auto low = hn::BitCast(DU16(), hn::DemoteTo(DHalf(), first));
    const auto high = hn::BitCast(DU16(), hn::DemoteTo(DHalf(), second));
    StoreOrStream<kStream>(hn::Combine(DPair(), high, low), DPair(), to);
#else
    alignas(64) float lanes[2 * hn::MaxLanes(DF())];
    hn::Store(first, DF(), lanes);
    hn::Store(second, DF(), lanes + hn::Lanes(DF()));
    quant::NarrowFromFloat(quant::Dtype::kF16, lanes, 2 * hn::Lanes(DF()), to);
#endif
  }
};
template <bool kStream>
struct StoreBf16s {
  using Round = RoundToBf16;
  static constexpr size_t kBytes = 2;
  static HWY_INLINE void Store(VF first, VF second, std::byte* to) {
    const auto low = hn::DemoteTo(DU16(), hn::BitCast(DI(), Bf16Bits(first)));
    const auto high = hn::DemoteTo(DU16(), hn::BitCast(DI(), Bf16Bits(second)));
    StoreOrStream<kStream>(hn::Combine(DPair(), high, low), DPair(), to);
  }
};

// --- what codes mean

// MLX, and q4_1 and q5_1 with RoundToFloat. Elements does the last rounding if it rounds alike.
template <class Round, class Elements>
struct AffineDecoder {
  using LastRound =
      std::conditional_t<std::is_same_v<Round, typename Elements::Round>, RoundToFloat, Round>;
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

template <class Elements, class Decoder>
HWY_INLINE void DecodeRows(const UnitStep& step, const uint8_t* codes, StepFloats floats,
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
      return DecodeRows<Elements>(step, codes, floats, to, SignedDecoder());
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
