// Floats to codes of a byte each, scales and biases, for one SIMD target: included once per target.
//
// Byte-identical with quant/codec.h: no step may be fused or reordered, hence the build's
// -ffp-contract=off and exact divisions. As many groups at a time as a vector has lanes: what is
// computed once a group is computed for all of them at once.
#if defined(PREFIXD_KERNELS_UNIT_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_UNIT_ENCODE_INL_H_
#undef PREFIXD_KERNELS_UNIT_ENCODE_INL_H_
#else
#define PREFIXD_KERNELS_UNIT_ENCODE_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"

#include "kernels/rows-inl.h"
#include "kernels/unit_step.h"
#include "quant/codec.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr size_t kLanes = hn::MaxLanes(DF());

// Two vectors of codes, saturated to a byte each: to uint8_t, of which a negative one becomes 0.
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_AVX3
// Packing works within blocks of 16 bytes; one permutation puts both vectors in order.
HWY_INLINE void StoreUnsignedPair(VI a, VI b, uint8_t* to) {
  const __m512i words = _mm512_packs_epi32(a.raw, b.raw);
  const __m512i bytes = _mm512_packus_epi16(words, words);
  const __m256i order = _mm256_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13);
  const __m512i ordered = _mm512_permutexvar_epi32(_mm512_castsi256_si512(order), bytes);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(ordered));
}
#else
HWY_INLINE void StoreUnsignedPair(VI a, VI b, uint8_t* to) {
  hn::StoreU(hn::DemoteTo(DU8(), a), DU8(), to);
  hn::StoreU(hn::DemoteTo(DU8(), b), DU8(), to + kLanes);
}
#endif

// Elements of an engine's tensor.
struct FloatElements {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE VF Load(const std::byte* from) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(from));
  }
};
struct HalfElements {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE VF Load(const std::byte* from) { return LoadHalf(from); }
};
struct Bf16Elements {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE VF Load(const std::byte* from) { return LoadBf16(from); }
};

// Floats at any address.
HWY_INLINE VF LoadFloats(const std::byte* from) { return FloatElements::Load(from); }

// What a codec makes of kLanes groups, a lane each. `factor` and `offset` are what their codes are
// computed with.
struct Fit {
  VF scale, bias;  // to store
  VF factor, offset;
};

// The groups of one batch, as floats: where they stand in the tensor, or widened.
struct Groups {
  const std::byte* first[kLanes];
  size_t count = 0;  // of groups, <= kLanes
  size_t size = 0;   // elements of each

  // The first element of group `i` that `wanted` accepts.
  template <class Wanted>
  HWY_INLINE float Find(size_t i, const Wanted& wanted) const {
    alignas(64) float values[128];
    for (size_t e = 0; e < size; e += kLanes) {
      hn::Store(LoadFloats(first[i] + e * sizeof(float)), DF(), values + e);
    }
    for (size_t e = 0; e < size; ++e) {
      if (wanted(values[e])) return values[e];
    }
    return std::numeric_limits<float>::quiet_NaN();
  }
};

// The least and the greatest element of some groups. Of kCount groups: each in kLanes / kCount
// lanes, those of the first group first.
struct Extremes {
  VF low, high;
};

// Widens groups on the way; those that are floats stay where they are.
template <class Elements>
class ExtremesFinder {
 public:
  // widened: [kLanes][groups->size].
  HWY_INLINE ExtremesFinder(Groups* groups, float* widened) : groups_(groups), widened_(widened) {}

  // Of groups `first` ... `first + kCount - 1`: neighbouring lanes of both halves are combined.
  template <size_t kCount>
  HWY_INLINE Extremes Find(size_t first) const {
    if constexpr (kCount == 1) {
      return FindInGroup(first);
    } else {
      const DF df;
      const Extremes a = Find<kCount / 2>(first), b = Find<kCount / 2>(first + kCount / 2);
      return {hn::Min(hn::ConcatEven(df, b.low, a.low), hn::ConcatOdd(df, b.low, a.low)),
              hn::Max(hn::ConcatEven(df, b.high, a.high), hn::ConcatOdd(df, b.high, a.high))};
    }
  }

 private:
  HWY_INLINE Extremes FindInGroup(size_t g) const {
    const VF one = hn::Set(DF(), 1.0f);
    if (g >= groups_->count) return {one, one};  // anything that is quick to compute with
    const std::byte* const from = groups_->first[g];
    float* const to = widened_ + g * groups_->size;
    Extremes found;
    found.low = found.high = Load(from, to);
    for (size_t e = kLanes; e < groups_->size; e += kLanes) {
      const VF x = Load(from + e * Elements::kBytes, to + e);
      found.low = hn::Min(found.low, x);
      found.high = hn::Max(found.high, x);
    }
    if (Elements::kBytes != sizeof(float)) {
      groups_->first[g] = reinterpret_cast<const std::byte*>(to);
    }
    return found;
  }
  static HWY_INLINE VF Load(const std::byte* from, float* to) {
    const VF x = Elements::Load(from);
    if (Elements::kBytes != sizeof(float)) hn::Store(x, DF(), to);
    return x;
  }

  Groups* const groups_;
  float* const widened_;
};

template <class Elements>
HWY_NOINLINE Extremes FindExtremes(Groups* groups, float* widened) {
  return ExtremesFinder<Elements>(groups, widened).template Find<kLanes>(0);
}

// MLX: the steps of quant/mlx_affine.cc.
class AffineEncoder {
 public:
  HWY_INLINE explicit AffineEncoder(uint8_t bits) : max_code_(hn::Set(DI(), (1 << bits) - 1)) {}

  HWY_INLINE Fit FitGroups(const Groups&, VF low, VF high) const {
    const DF df;
    const auto negative_edge = hn::Gt(hn::Abs(low), hn::Abs(high));
    const VF step =
        hn::Max(hn::Div(hn::Sub(high, low), hn::ConvertTo(df, max_code_)), hn::Set(df, 1e-7f));
    const VF edge = hn::IfThenElse(negative_edge, low, high);
    const VF scale = hn::IfThenElse(negative_edge, step, hn::Neg(step));
    const VF zero_code = hn::Round(hn::Div(edge, scale));
    const auto at_zero = hn::Eq(zero_code, hn::Zero(df));
    Fit fit;
    fit.scale = fit.factor = hn::IfThenElse(at_zero, scale, hn::Div(edge, zero_code));
    fit.bias = fit.offset = hn::IfThenElse(at_zero, hn::Zero(df), edge);
    return fit;
  }
  // A quotient is computed by the reciprocal, which is several times as fast as a division and off
  // by less than 1e-4: a group with a quotient that is so close to a tie is divided. Codes are
  // whole numbers in the low bits of quotient + 1.5 * 2^23.
  HWY_INLINE void Encode(const std::byte* group, size_t size, float scale, float bias,
                         uint8_t* codes) const {
    const DF df;
    const VF offset = hn::Set(df, bias), reciprocal = hn::Set(df, 1.0f / scale);
    const VF magic = hn::Set(df, 0x1.8p23f);
    VI worst = hn::Zero(DI());  // distance from a whole number, as the bits of a float
    const auto code = [&](size_t e) HWY_ATTR {
      const VF x = LoadFloats(group + e * sizeof(float));
      const VF quotient = hn::Mul(hn::Sub(x, offset), reciprocal);
      const VF shifted = hn::Add(quotient, magic);
      const VF rest = hn::Abs(hn::Sub(quotient, hn::Sub(shifted, magic)));
      worst = hn::Max(worst, hn::BitCast(DI(), rest));  // NaN is worse than all
      return hn::Min(hn::Sub(hn::BitCast(DI(), shifted), hn::BitCast(DI(), magic)), max_code_);
    };
    for (size_t e = 0; e < size; e += 2 * kLanes) {
      const VI first = code(e);
      StoreUnsignedPair(first, code(e + kLanes), codes + e);
    }
    const auto limit = hn::BitCast(DI(), hn::Set(df, 0.4999f));
    if (!hn::AllFalse(DI(), hn::Gt(worst, limit))) Divide(group, size, scale, bias, codes);
  }

 private:
  HWY_INLINE void Divide(const std::byte* group, size_t size, float scale, float bias,
                         uint8_t* codes) const {
    const DF df;
    for (size_t e = 0; e < size; e += kLanes) {
      const VF x = hn::Sub(LoadFloats(group + e * sizeof(float)), hn::Set(df, bias));
      const VF code = hn::Round(hn::Div(x, hn::Set(df, scale)));
      // Also turns NaN into 0.
      const VF positive = hn::IfThenElseZero(hn::Gt(code, hn::Zero(df)), code);
      const VI whole = hn::ConvertTo(DI(), hn::Min(positive, hn::ConvertTo(df, max_code_)));
      hn::StoreU(hn::DemoteTo(DU8(), whole), DU8(), codes + e);
    }
  }

  const VI max_code_;
};

// 1 / d, or 0 where d is 0, and where it is so small that its inverse overflows: the codes of such
// groups are 0, as those of infinities are.
struct Inverse {
  HWY_INLINE explicit Inverse(VF d)
      : overflows(hn::IsInf(hn::Div(hn::Set(DF(), 1.0f), d))),
        value(hn::IfThenElse(overflows, hn::Zero(DF()), hn::Div(hn::Set(DF(), 1.0f), d))) {}
  hn::Mask<DF> overflows;  // or d is 0
  VF value;
};

// q8_0: halves are rounded away from zero.
class ByteEncoder {
 public:
  HWY_INLINE Fit FitGroups(const Groups&, VF low, VF high) const {
    Fit fit;
    fit.scale = hn::Div(hn::Max(hn::Abs(low), hn::Abs(high)), hn::Set(DF(), 127.0f));
    fit.bias = fit.offset = hn::Zero(DF());
    fit.factor = Inverse(fit.scale).value;
    return fit;
  }
  HWY_INLINE void Encode(const std::byte* group, size_t size, float inverse, float,
                         uint8_t* codes) const {
    const DF df;
    // The largest float below a half: what is added to a half gives 1, to less it gives less.
    const VF almost_half = hn::Set(df, 0x1.fffffep-2f);
    for (size_t e = 0; e < size; e += kLanes) {
      const VF x = LoadFloats(group + e * sizeof(float));
      const VF value = hn::Mul(x, hn::Set(df, inverse));
      const VF rounded = hn::Add(value, hn::CopySign(almost_half, value));
      const VI code = hn::ConvertTo(DI(), hn::IfThenElseZero(hn::Eq(value, value), rounded));
      hn::StoreU(hn::DemoteTo(DI8(), code), DI8(), reinterpret_cast<int8_t*>(codes + e));
    }
  }
};

struct Truncation {
  float low, inverse, shift, max_code;
};
// Truncates (x - low) * inverse + shift to [0, max_code]; what is no number gives 0.
HWY_INLINE void EncodeTruncated(const std::byte* group, size_t size, Truncation with,
                                uint8_t* codes) {
  const DF df;
  const VF low = hn::Set(df, with.low), inverse = hn::Set(df, with.inverse);
  const VF shift = hn::Set(df, with.shift), max_code = hn::Set(df, with.max_code);
  const auto code = [&](size_t e) HWY_ATTR {
    const VF x = LoadFloats(group + e * sizeof(float));
    const VF value = hn::Add(hn::Mul(hn::Sub(x, low), inverse), shift);
    const auto number = hn::Ge(value, hn::Zero(df));
    return hn::ConvertTo(DI(), hn::IfThenElseZero(number, hn::Min(value, max_code)));
  };
  for (size_t e = 0; e < size; e += 2 * kLanes) {
    const VI first = code(e);
    StoreUnsignedPair(first, code(e + kLanes), codes + e);
  }
}

// q4_0 and q5_0: the first element of largest magnitude gets code 0, zero gets the middle code.
class CenteredEncoder {
 public:
  HWY_INLINE explicit CenteredEncoder(uint8_t bits)
      : middle_(static_cast<float>(1u << (bits - 1))) {}

  HWY_INLINE Fit FitGroups(const Groups& groups, VF low, VF high) const {
    const DF df;
    Fit fit;
    fit.scale = hn::Div(Widest(groups, low, high), hn::Set(df, -middle_));
    const Inverse inverse(fit.scale);
    const auto zero = hn::Eq(fit.scale, hn::Zero(df));
    fit.bias = hn::Zero(df);
    fit.factor = inverse.value;
    fit.offset =
        hn::IfThenElse(hn::AndNot(zero, inverse.overflows), fit.bias, hn::Set(df, middle_ + 0.5f));
    return fit;
  }
  HWY_INLINE void Encode(const std::byte* group, size_t size, float inverse, float shift,
                         uint8_t* codes) const {
    EncodeTruncated(group, size,
                    {.low = 0, .inverse = inverse, .shift = shift, .max_code = 2 * middle_ - 1},
                    codes);
  }

 private:
  // Of every group; +0 where all are zeros.
  static HWY_INLINE VF Widest(const Groups& groups, VF low, VF high) {
    const DF df;
    const VF zero = hn::Zero(df);
    VF widest = hn::IfThenElse(hn::Gt(hn::Abs(low), hn::Abs(high)), low, high);
    widest = hn::IfThenElse(hn::Eq(widest, zero), zero, widest);
    const auto ties = hn::And(hn::Eq(low, hn::Neg(high)), hn::Ne(low, high));
    if (hn::AllFalse(df, ties)) return widest;
    alignas(64) float values[kLanes], lows[kLanes];
    hn::Store(widest, df, values);
    hn::Store(low, df, lows);
    for (size_t i = 0; i < groups.count; ++i) {
      const float magnitude = std::fabs(values[i]);
      if (magnitude == 0 || lows[i] != -magnitude) continue;
      values[i] = groups.Find(i, [&](float x) { return std::fabs(x) == magnitude; });
    }
    return hn::Load(df, values);
  }

  const float middle_;
};

// q4_1 and q5_1: the minimum gets code 0. Of zeros of both signs the first one is the minimum.
class MinimumEncoder {
 public:
  HWY_INLINE explicit MinimumEncoder(uint8_t bits)
      : max_code_(static_cast<float>((1u << bits) - 1)) {}

  HWY_INLINE Fit FitGroups(const Groups& groups, VF low, VF high) const {
    const DF df;
    Fit fit;
    fit.scale = hn::Div(hn::Sub(high, low), hn::Set(df, max_code_));
    fit.factor = Inverse(fit.scale).value;
    if (!hn::AllFalse(df, hn::Eq(low, hn::Zero(df)))) {
      alignas(64) float lows[kLanes];
      hn::Store(low, df, lows);
      for (size_t i = 0; i < groups.count; ++i) {
        if (lows[i] == 0) lows[i] = groups.Find(i, [](float x) { return x == 0; });
      }
      low = hn::Load(df, lows);
    }
    fit.bias = fit.offset = low;
    return fit;
  }
  HWY_INLINE void Encode(const std::byte* group, size_t size, float inverse, float low,
                         uint8_t* codes) const {
    EncodeTruncated(group, size,
                    {.low = low, .inverse = inverse, .shift = 0.5f, .max_code = max_code_}, codes);
  }

 private:
  const float max_code_;
};

HWY_INLINE void PrefetchElements(const std::byte* from, size_t count) {
  for (size_t i = 0; i < count; i += 64) __builtin_prefetch(from + i, /*rw=*/0, /*locality=*/2);
}

// Where the rows of a step's tokens begin.
struct ElementRows {
  const std::byte* first = nullptr;
  size_t stride = 0;  // bytes from a token to the next
};

// Stores the first `count` lanes as elements of `dtype`.
HWY_INLINE void NarrowLanes(quant::Dtype dtype, VF lanes, size_t count, std::byte* to) {
  alignas(64) float values[kLanes];
  hn::Store(lanes, DF(), values);
  if (count != kLanes) return quant::NarrowFromFloat(dtype, values, count, to);
  Narrow(dtype, values, kLanes, to);
}

template <class Elements, class Encoder>
class StepEncoder {
 public:
  HWY_INLINE StepEncoder(const UnitStep& step, const ElementRows& rows, const Encoder& encoder)
      : step_(step),
        rows_(rows),
        encoder_(encoder),
        size_(step.shape.format.group_size),
        groups_(step.groups()),
        ahead_((3 * kLanes + groups_ - 1) / groups_ * rows.stride) {}

  // The parameters of the next batch are computed while codes of this one are: divisions take long.
  HWY_INLINE void Run(const Parts& to) const {
    const size_t count = groups_ * step_.count;
    Batch batches[2];
    Prepare(0, count, to, &batches[0]);
    for (size_t done = 0; done < count; done += kLanes) {
      const Batch& batch = batches[done / kLanes % 2];
      if (done + kLanes < count) {
        Prepare(done + kLanes, count, to, &batches[(done / kLanes + 1) % 2]);
      }
      uint8_t* codes = to.codes + done * size_;
      for (size_t g = 0; g < batch.groups.count; ++g, codes += size_) {
        PrefetchElements(batch.elements[g] + ahead_, size_ * Elements::kBytes);
        encoder_.Encode(batch.groups.first[g], size_, batch.factors[g], batch.offsets[g], codes);
      }
    }
  }

 private:
  // Up to kLanes groups, and what their codes are computed with.
  struct Batch {
    const std::byte* elements[kLanes];  // in the tensor
    Groups groups;
    alignas(64) float factors[kLanes], offsets[kLanes];
    alignas(64) float widened[Elements::kBytes == sizeof(float) ? 1 : kLanes * 128];
  };

  // Of groups from `begin` on; stores their scales and biases.
  HWY_INLINE void Prepare(size_t begin, size_t end, const Parts& to, Batch* batch) const {
    const DF df;
    Groups& groups = batch->groups;
    groups.size = size_;
    groups.count = HWY_MIN(kLanes, end - begin);
    const std::byte* row = rows_.first + begin / groups_ * rows_.stride;
    size_t in_row = begin % groups_;
    for (size_t i = 0; i < groups.count; ++i) {
      groups.first[i] = batch->elements[i] = row + in_row * size_ * Elements::kBytes;
      if (++in_row == groups_) {
        in_row = 0;
        row += rows_.stride;
      }
    }
    const Extremes extremes = FindExtremes<Elements>(&groups, batch->widened);
    const Fit fit = encoder_.FitGroups(groups, extremes.low, extremes.high);
    const quant::Dtype dtype = step_.shape.format.scale_dtype;
    NarrowLanes(dtype, fit.scale, groups.count, to.scales + begin * step_.scale_bytes());
    if (step_.has_biases()) {
      NarrowLanes(dtype, fit.bias, groups.count, to.biases + begin * step_.scale_bytes());
    }
    hn::Store(fit.factor, df, batch->factors);
    hn::Store(fit.offset, df, batch->offsets);
  }

  const UnitStep& step_;
  const ElementRows& rows_;
  const Encoder& encoder_;
  const size_t size_, groups_;
  const size_t ahead_;  // three batches: memory is read while codes are computed, not only before
};

template <class Elements>
HWY_INLINE void EncodeElements(const UnitStep& step, const ElementRows& rows, const Parts& to) {
  const uint8_t bits = step.shape.format.bits;
  switch (step.shape.format.codec) {
    case quant::Codec::kRaw:
      return;
    case quant::Codec::kMlxAffine:
      return StepEncoder<Elements, AffineEncoder>(step, rows, AffineEncoder(bits)).Run(to);
    case quant::Codec::kQ8_0:
      return StepEncoder<Elements, ByteEncoder>(step, rows, ByteEncoder()).Run(to);
    case quant::Codec::kQ4_0:
    case quant::Codec::kQ5_0:
      return StepEncoder<Elements, CenteredEncoder>(step, rows, CenteredEncoder(bits)).Run(to);
    case quant::Codec::kQ4_1:
    case quant::Codec::kQ5_1:
      return StepEncoder<Elements, MinimumEncoder>(step, rows, MinimumEncoder(bits)).Run(to);
  }
}

// Requires: the format is not raw.
inline HWY_ATTR void EncodeStep(const UnitStep& step, quant::Dtype dtype, const ElementRows& rows,
                                const Parts& to) {
  switch (dtype) {
    case quant::Dtype::kF32:
      return EncodeElements<FloatElements>(step, rows, to);
    case quant::Dtype::kF16:
      return EncodeElements<HalfElements>(step, rows, to);
    case quant::Dtype::kBf16:
      return EncodeElements<Bf16Elements>(step, rows, to);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
