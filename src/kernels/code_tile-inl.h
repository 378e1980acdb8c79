// Stored codes on their way into a tile, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_CODE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CODE_TILE_INL_H_
#undef PREFIXD_KERNELS_CODE_TILE_INL_H_
#else
#define PREFIXD_KERNELS_CODE_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/blocks-inl.h"
#include "kernels/rows-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Lays the codes of tokens out as Products wants them, and beside them each token's scales and
// biases. Codes are taken less the middle of their range, which makes products small, and the bias
// makes up for it. Values' codes c become -1 - c where their scale is negative, so that weights
// times scales never are: the bias makes up for that too.
template <class Products>
class CodeTile {
 public:
  HWY_INLINE CodeTile(const AttendJob& job, uint32_t kv_head, const AttendScratch& scratch,
                      const Products& products)
      : job_(job),
        scratch_(scratch),
        code_(scratch.code),
        products_(products),
        blocks_(job, kv_head),
        ahead_(job, kv_head) {}

  // Positions `begin` ... `begin + count - 1`; calls go upwards. What is behind them stays finite.
  // `more` tokens from the next tile on are asked for soon.
  HWY_ATTR void Load(uint64_t begin, uint32_t count, uint32_t more) {
    for (uint32_t done = 0; done < more;) {
      done += ahead_.Take(begin + kTileTokens + done, more - done);
      Prefetch(ahead_.keys());
      Prefetch(ahead_.values());
    }
    for (uint32_t slot = 0; slot < count; slot += kStepTokens) {
      LoadStep(begin + slot, slot, HWY_MIN(kStepTokens, count - slot));
      products_.LayKeys(slot);
      products_.LayValues(slot);
    }
    products_.FinishTile();
  }

 private:
  using Code = typename Products::Code;

  HWY_INLINE void LoadStep(uint64_t begin, uint32_t slot, uint32_t count) {
    Code* const keys = reinterpret_cast<Code*>(code_.key_rows);
    Code* const values = reinterpret_cast<Code*>(code_.value_rows);
    for (uint32_t done = 0; done < count;) {
      const uint32_t run = blocks_.Take(begin + done, count - done);
      LoadParameters<false>(blocks_.keys(), slot + done, job_.key_group, code_.key_scales,
                            code_.key_biases);
      LoadCodes<false>(blocks_.keys(), keys + done * scratch_.key_pitch, scratch_.key_pitch);
      LoadParameters<true>(blocks_.values(), slot + done, job_.value_group, code_.value_scales,
                           code_.value_biases);
      LoadCodes<true>(blocks_.values(), values + done * scratch_.value_pitch, scratch_.value_pitch);
      done += run;
    }
  }

  template <bool kPositive>
  HWY_INLINE void LoadParameters(const RowRange& rows, uint32_t slot, uint32_t group, float* scales,
                                 float* biases) {
    static_assert(kStepTokens == 16);  // one vector
    WidenParameters(rows, scratch_.rows);
    const DF df;
    const auto taken = hn::FirstN(df, rows.count);
    const VF middle = hn::Set(df, static_cast<float>(1u << (rows.format->bits - 1)));
    const VF flipped_middle = hn::Sub(middle, hn::Set(df, 1));
    const size_t stored = rows.dim / rows.format->group_size;
    const size_t copies = rows.format->group_size / group;
    const VI token = hn::Mul(hn::Iota(DI(), 0), hn::Set(DI(), static_cast<int32_t>(stored)));
    for (size_t g = 0; g < stored * copies; ++g) {
      const VF scale = hn::GatherIndex(df, scratch_.rows.scales + g / copies, token);
      const VF bias = hn::GatherIndex(df, scratch_.rows.biases + g / copies, token);
      const auto flipped = hn::Lt(scale, hn::Zero(df));
      const VF less = kPositive ? hn::IfThenElse(flipped, flipped_middle, middle) : middle;
      const size_t at = g * kTileTokens + slot;
      hn::BlendedStore(kPositive ? hn::Abs(scale) : scale, taken, df, scales + at);
      hn::BlendedStore(hn::MulAdd(scale, less, bias), taken, df, biases + at);
    }
  }

  // After LoadParameters: what it widened still stands.
  template <bool kPositive>
  HWY_INLINE void LoadCodes(const RowRange& rows, Code* to, size_t pitch) {
    const hn::Rebind<Code, hn::CappedTag<int16_t, 32>> d;
    const auto middle = hn::Set(d, static_cast<Code>(1 << (rows.format->bits - 1)));
    const size_t group = rows.format->group_size;
    const float* scale = scratch_.rows.scales;
    const std::byte* from =
        rows.unit + rows.layout.codes_offset + size_t{rows.first} * rows.row.codes;
    for (uint32_t t = 0; t < rows.count; ++t, from += rows.row.codes, to += pitch) {
      const uint8_t* codes = AffineCodes(rows.format->bits, from, rows.dim, scratch_.rows.codes);
      for (size_t begin = 0; begin < rows.dim; begin += group, ++scale) {
        const auto flip = hn::Set(d, static_cast<Code>(kPositive && *scale < 0 ? -1 : 0));
        for (size_t i = begin; i < begin + group; i += hn::Lanes(d)) {
          auto code = hn::Sub(LoadBytes(d, codes + i), middle);
          if (kPositive) code = hn::Xor(code, flip);
          hn::StoreU(code, d, to + i);
        }
      }
    }
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* from) {
    const auto bytes = hn::LoadU(hn::Rebind<uint8_t, D>(), from);
    if constexpr (sizeof(hn::TFromD<D>) == 1) {
      return hn::BitCast(d, bytes);
    } else {
      return hn::PromoteTo(d, bytes);
    }
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  const CodeScratch& code_;
  const Products& products_;
  BlockCursor blocks_;
  BlockCursor ahead_;  // of what is prefetched
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
