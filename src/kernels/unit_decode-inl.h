// Codes of a byte each, scales and biases to elements of an engine's tensor, for one SIMD target:
// included once per target. Byte-identical with quant/codec.h.
#if defined(PREFIXD_KERNELS_UNIT_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_UNIT_DECODE_INL_H_
#undef PREFIXD_KERNELS_UNIT_DECODE_INL_H_
#else
#define PREFIXD_KERNELS_UNIT_DECODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/rows-inl.h"
#include "kernels/unit_step.h"
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

// kStream: past the caches; requires that `to` is aligned to a vector of its elements.
template <bool kStream, class D>
HWY_INLINE void StoreOrStream(hn::Vec<D> elements, D d, std::byte* to) {
  auto* const at = reinterpret_cast<hn::TFromD<D>*>(to);
  if constexpr (kStream) {
    hn::Stream(elements, d, at);
  } else {
    hn::StoreU(elements, d, at);
  }
}

template <bool kStream>
struct StoreFloats {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE void Store(VF value, std::byte* to) { StoreOrStream<kStream>(value, DF(), to); }
};
template <bool kStream>
struct StoreHalves {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE void Store(VF value, std::byte* to) {
#if PREFIXD_KERNELS_HAVE_F16C
    const auto halves = hn::DemoteTo(DHalf(), value);
    StoreOrStream<kStream>(hn::BitCast(DU16(), halves), DU16(), to);
#else
    alignas(64) float lanes[hn::MaxLanes(DF())];
    hn::Store(value, DF(), lanes);
    quant::NarrowFromFloat(quant::Dtype::kF16, lanes, hn::MaxLanes(DF()), to);
#endif
  }
};
template <bool kStream>
struct StoreBf16s {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE void Store(VF value, std::byte* to) {
    const auto bits = hn::BitCast(DI(), Bf16Bits(value));
    StoreOrStream<kStream>(hn::DemoteTo(DU16(), bits), DU16(), to);
  }
};

// --- what codes mean

// MLX, and q4_1 and q5_1 with RoundToFloat.
template <class Round>
struct AffineDecoder {
  HWY_INLINE VF Decode(const uint8_t* codes, VF scale, VF bias) const {
    const Round round;
    const VF code = hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(DU8(), codes)));
    return round(hn::Add(round(hn::Mul(code, scale)), bias));
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

struct MutableElementRows {
  std::byte* first = nullptr;
  size_t stride = 0;  // bytes from a token to the next
};

// scales, biases: [count][groups]; biases may be null when the codec has none.
struct StepFloats {
  const float* scales = nullptr;
  const float* biases = nullptr;
};

template <class Elements, class Decoder>
HWY_INLINE void DecodeRows(const UnitStep& step, const uint8_t* codes, StepFloats floats,
                           const MutableElementRows& to, const Decoder& decoder) {
  const DF df;
  const size_t dim = step.shape.dim, size = step.shape.format.group_size;
  for (size_t t = 0; t < step.count; ++t) {
    std::byte* out = to.first + t * to.stride;
    for (size_t begin = 0; begin < dim; begin += size) {
      const VF scale = hn::Set(df, *floats.scales++), bias = hn::Set(df, *floats.biases++);
      for (size_t e = 0; e < size; e += hn::Lanes(df)) {
        Elements::Store(decoder.Decode(codes, scale, bias), out);
        codes += hn::Lanes(df);
        out += hn::Lanes(df) * Elements::kBytes;
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
      return;
    case quant::Codec::kMlxAffine:
      if (format.dtype == quant::Dtype::kF16) {
        return DecodeRows<Elements>(step, codes, floats, to, AffineDecoder<RoundToF16>());
      }
      if (format.dtype == quant::Dtype::kBf16) {
        return DecodeRows<Elements>(step, codes, floats, to, AffineDecoder<RoundToBf16>());
      }
      return DecodeRows<Elements>(step, codes, floats, to, AffineDecoder<RoundToFloat>());
    case quant::Codec::kQ4_1:
    case quant::Codec::kQ5_1:
      return DecodeRows<Elements>(step, codes, floats, to, AffineDecoder<RoundToFloat>());
    case quant::Codec::kQ4_0:
    case quant::Codec::kQ5_0:
      return DecodeRows<Elements>(step, codes, floats, to, CenteredDecoder{middle});
    case quant::Codec::kQ8_0:
      return DecodeRows<Elements>(step, codes, floats, to, SignedDecoder());
  }
}

// Where a vector of elements goes.
struct ElementOutput {
  quant::Dtype dtype = quant::Dtype::kF32;
  bool stream = false;  // past the caches: every row is aligned to vectors
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

// Requires: the format is not raw.
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
