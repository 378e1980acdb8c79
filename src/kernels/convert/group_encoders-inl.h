// Computes the scale and the bias of groups of floats and a code for each element, for one SIMD
// target: included once per target.
//
// Byte-identical with quant/codec.h: no step may be fused or reordered unless it is shown to give
// the same bytes, hence the build's -ffp-contract=off.
#if defined(PREFIXD_KERNELS_CONVERT_GROUP_ENCODERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CONVERT_GROUP_ENCODERS_INL_H_
#undef PREFIXD_KERNELS_CONVERT_GROUP_ENCODERS_INL_H_
#else
#define PREFIXD_KERNELS_CONVERT_GROUP_ENCODERS_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/store_codes-inl.h"
#include "kernels/convert/group_extremes-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// What a codec makes of kLanes groups, a lane each. Codes are computed with `factor` and `offset`.
struct Fit {
  VF scale, bias;  // to store
  VF factor, offset;
  // Reciprocal of `factor` in two parts, if the encoder divides by it. 0 if it may not be used.
  VF inverse, inverse_rest;
  // An implicit constructor lacks the target attributes that NEON needs.
  HWY_INLINE Fit() : inverse(hn::Zero(DF())), inverse_rest(inverse) {}
};

// Pointers to the values of one group: each load fills a vector with one value.
struct CodeFactor {
  const float *factor, *offset, *inverse, *inverse_rest;
  bool divides = true;  // the inverse may not be used
};
HWY_INLINE VF Filled(const float* with) { return hn::Set(DF(), *with); }

// Divides many numbers by one.
class Divisor {
 public:
  HWY_INLINE explicit Divisor(const float* divisor) : divisor_(Filled(divisor)) {}
  HWY_INLINE VF Divide(VF x) const { return hn::Div(x, divisor_); }

 private:
  const VF divisor_;
};

// 1 / d as the sum of two floats.
struct Reciprocal {
  VF high, low;
  HWY_INLINE Reciprocal(VF high_part, VF low_part) : high(high_part), low(low_part) {}
};

// Divides by two multiplications; quotients round to Divisor's integers where these are 0 to 255.
//
// The sum that is rounded last is off from x / d by less than 1.5 * 2^-47 of it. So the floats
// differ only where a midpoint of two floats is that near, and the integers only where one of these
// two floats is a tie T = n + 1/2. Let B be the 24 bits of d, and 2^e <= T < 2^(e+1). x - d * T is
// a multiple of half a unit in d's last place. It should be B * 2^(e-23) of these halves: with the
// error, B would be within 6 of a multiple of 2^(23-e), hence, as e < 8, of 2^16. QuantizeTest
// tries all such B with every tie: only B = 2^24 - 1 fails. Divisor handles it.
class InvertedDivisor {
 public:
  // `high` is 0 where the reciprocal may not be used: without FMA, for the B above, and where a
  // part might be subnormal. For NaN it is NaN and gives code 0, as a division and an infinite x
  // do.
  static HWY_INLINE Reciprocal Invert(VF divisor) {
    const DF df;
    const DI di;
    const VF one = hn::Set(df, 1.0f);
    if (HWY_NATIVE_FMA == 0) return {hn::Zero(df), hn::Zero(df)};
    const VF magnitude = hn::Abs(divisor);
    const auto too_far =
        hn::Or(hn::Lt(magnitude, hn::Set(df, 0x1p-60f)), hn::Gt(magnitude, hn::Set(df, 0x1p60f)));
    const VI mantissa = hn::Set(di, 0x7fffff);
    const auto all_ones =
        hn::RebindMask(df, hn::Eq(hn::And(hn::BitCast(di, divisor), mantissa), mantissa));
    const VF high = hn::Div(one, divisor);
    const VF low = hn::Mul(hn::NegMulAdd(divisor, high, one), high);
    return {hn::IfThenZeroElse(hn::Or(too_far, all_ones), high), low};
  }
  HWY_INLINE InvertedDivisor(const float* high, const float* low)
      : high_(Filled(high)), low_(Filled(low)) {}
  HWY_INLINE VF Divide(VF x) const { return hn::MulAdd(x, high_, hn::Mul(x, low_)); }

 private:
  const VF high_, low_;
};

// MLX: the steps of quant/mlx_affine.cc.
class AffineEncoder {
 public:
  HWY_INLINE explicit AffineEncoder(uint8_t bits)
      : max_code_(hn::Set(DI(), (1 << bits) - 1)), most_(static_cast<uint8_t>((1 << bits) - 1)) {}

  template <class Elements>
  HWY_INLINE Fit FitGroups(const Groups<Elements>&, VF low, VF high) const {
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
    const Reciprocal reciprocal = InvertedDivisor::Invert(fit.factor);
    fit.inverse = reciprocal.high;
    fit.inverse_rest = reciprocal.low;
    return fit;
  }
  template <class Elements>
  HWY_INLINE void Encode(const std::byte* group, size_t size, const CodeFactor& with,
                         uint8_t* codes) const {
    if (HWY_LIKELY(!with.divides)) {
      const InvertedDivisor divisor(with.inverse, with.inverse_rest);
      EncodeQuotients<Elements>(group, size, divisor, with.offset, codes);
    } else {
      EncodeQuotients<Elements>(group, size, Divisor(with.factor), with.offset, codes);
    }
  }

 private:
  template <class Elements, class Divisor>
  HWY_INLINE void EncodeQuotients(const std::byte* group, size_t size, const Divisor& divisor,
                                  const float* bias, uint8_t* codes) const {
    const VF offset = Filled(bias);
    const auto code = [&](VF x)
                          HWY_ATTR { return NearestOfSmall(divisor.Divide(hn::Sub(x, offset))); };
    const auto at = [&](size_t e) HWY_ATTR { return group + e * Elements::kBytes; };
    size_t e = 0;
    for (; e + 4 * kLanes <= size; e += 4 * kLanes) {
#if PREFIXD_KERNELS_HAVE_PAIRS
      if constexpr (Elements::kInPairs) {
        const auto first = Elements::LoadPairs(at(e)),
                   second = Elements::LoadPairs(at(e + 2 * kLanes));
        const VI a = code(Elements::EvenOf(first)), b = code(Elements::OddOf(first));
        const VI c = code(Elements::EvenOf(second));
        StoreUnsignedPairs(a, b, c, code(Elements::OddOf(second)), most_, codes + e);
        continue;
      }
#endif
      const VI a = code(Elements::Load(at(e))), b = code(Elements::Load(at(e + kLanes)));
      const VI c = code(Elements::Load(at(e + 2 * kLanes)));
      StoreUnsignedQuad(a, b, c, code(Elements::Load(at(e + 3 * kLanes))), most_, codes + e);
    }
    for (; e < size; e += 2 * kLanes) {
      const VI a = code(Elements::Load(at(e)));
      StoreUnsignedPair(a, code(Elements::Load(at(e + kLanes))), most_, codes + e);
    }
  }

  const VI max_code_;
  const uint8_t most_;
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
  template <class Elements>
  HWY_INLINE Fit FitGroups(const Groups<Elements>&, VF low, VF high) const {
    Fit fit;
    fit.scale = hn::Div(hn::Max(hn::Abs(low), hn::Abs(high)), hn::Set(DF(), 127.0f));
    fit.bias = fit.offset = hn::Zero(DF());
    fit.factor = Inverse(fit.scale).value;
    return fit;
  }
  template <class Elements>
  HWY_INLINE void Encode(const std::byte* group, size_t size, const CodeFactor& with,
                         uint8_t* codes) const {
    const DF df;
    // The largest float below a half: added to a half it gives 1, added to less it gives less.
    const VF almost_half = hn::Set(df, 0x1.fffffep-2f);
    for (size_t e = 0; e < size; e += kLanes) {
      const VF x = Elements::Load(group + e * Elements::kBytes);
      const VF value = hn::Mul(x, Filled(with.factor));
      const VF rounded = hn::Add(value, hn::CopySign(almost_half, value));
      const VI code = hn::ConvertTo(DI(), hn::IfThenElseZero(hn::Eq(value, value), rounded));
      hn::StoreU(hn::DemoteTo(DI8(), code), DI8(), reinterpret_cast<int8_t*>(codes + e));
    }
  }
};

struct Truncation {
  float low, inverse, shift, max_code;
};
// Truncates (x - low) * inverse + shift to [0, max_code]; NaN gives 0.
template <class Elements>
HWY_INLINE void EncodeTruncated(const std::byte* group, size_t size, Truncation with,
                                uint8_t* codes) {
  const DF df;
  const VF low = hn::Set(df, with.low), inverse = hn::Set(df, with.inverse);
  const VF shift = hn::Set(df, with.shift), max_code = hn::Set(df, with.max_code);
  const auto code = [&](size_t e) HWY_ATTR {
    const VF x = Elements::Load(group + e * Elements::kBytes);
    const VF value = hn::Add(hn::Mul(hn::Sub(x, low), inverse), shift);
    const auto number = hn::Ge(value, hn::Zero(df));
    return hn::ConvertTo(DI(), hn::IfThenElseZero(number, hn::Min(value, max_code)));
  };
  for (size_t e = 0; e < size; e += 2 * kLanes) {
    const VI first = code(e);
    StoreUnsignedPair(first, code(e + kLanes), 255, codes + e);
  }
}

// q4_0 and q5_0: the first element of largest magnitude gets code 0, zero gets the middle code.
class CenteredEncoder {
 public:
  HWY_INLINE explicit CenteredEncoder(uint8_t bits)
      : middle_(static_cast<float>(1u << (bits - 1))) {}

  template <class Elements>
  HWY_INLINE Fit FitGroups(const Groups<Elements>& groups, VF low, VF high) const {
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
  template <class Elements>
  HWY_INLINE void Encode(const std::byte* group, size_t size, const CodeFactor& with,
                         uint8_t* codes) const {
    EncodeTruncated<Elements>(
        group, size,
        {.low = 0, .inverse = *with.factor, .shift = *with.offset, .max_code = 2 * middle_ - 1},
        codes);
  }

 private:
  // Returns every group's first element of largest magnitude; +0 where all are zeros.
  template <class Elements>
  static HWY_INLINE VF Widest(const Groups<Elements>& groups, VF low, VF high) {
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

  template <class Elements>
  HWY_INLINE Fit FitGroups(const Groups<Elements>& groups, VF low, VF high) const {
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
  template <class Elements>
  HWY_INLINE void Encode(const std::byte* group, size_t size, const CodeFactor& with,
                         uint8_t* codes) const {
    EncodeTruncated<Elements>(
        group, size,
        {.low = *with.offset, .inverse = *with.factor, .shift = 0.5f, .max_code = max_code_},
        codes);
  }

 private:
  const float max_code_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
