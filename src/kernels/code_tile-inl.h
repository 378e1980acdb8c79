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
// makes up for it. Values of fewer bits than the widest format's are multiplied up to its range, so
// that weights times scales are of one size. Values' codes c become -1 - c where their scale is
// negative, so that weights times scales never are: the bias makes up for that too.
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

  struct Part {
    uint64_t begin = 0;  // of the tile
    TileTokens tokens = 0;
  };
  // Calls go upwards. Other tokens of the tile keep what they had. `next` is asked for soon.
  HWY_ATTR void Load(const Part& part, const Part& next) {
    PrefetchPart(next);
    for (uint32_t slot = 0; slot < kTileTokens; slot += kStepTokens) {
      const TileTokens step = part.tokens >> slot & FirstTokens(kStepTokens);
      if (step == 0) continue;
      for (TokenRun run = RunFrom(step, 0); run.count != 0;
           run = RunFrom(step, run.first + run.count)) {
        LoadRun(part.begin, slot, run);
      }
      products_.LayKeys(slot);
      products_.LayValues(slot);
    }
    products_.FinishTile();
  }

 private:
  using Code = typename Products::Code;

  HWY_INLINE void PrefetchPart(const Part& part) {
    for (TokenRun run = RunFrom(part.tokens, 0); run.count != 0;
         run = RunFrom(part.tokens, run.first + run.count)) {
      for (uint32_t done = 0; done < run.count;) {
        done += ahead_.Take(part.begin + run.first + done, run.count - done);
        Prefetch(ahead_.keys());
        Prefetch(ahead_.values());
      }
    }
  }

  HWY_INLINE void LoadRun(uint64_t begin, uint32_t slot, TokenRun run) {
    Code* const keys = reinterpret_cast<Code*>(code_.key_rows);
    Code* const values = reinterpret_cast<Code*>(code_.value_rows);
    const uint32_t end = run.first + run.count;
    for (uint32_t t = run.first; t < end;) {
      const uint32_t taken = blocks_.Take(begin + slot + t, end - t);
      LoadParameters<false>(blocks_.keys(), slot + t, job_.key_group, code_.key_scales,
                            code_.key_biases);
      LoadCodes<false>(blocks_.keys(), keys + t * scratch_.key_pitch, scratch_.key_pitch);
      LoadParameters<true>(blocks_.values(), slot + t, job_.value_group, code_.value_scales,
                           code_.value_biases);
      LoadCodes<true>(blocks_.values(), values + t * scratch_.value_pitch, scratch_.value_pitch);
      t += taken;
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
    const VF one = hn::Set(df, kPositive ? 1.0f / static_cast<float>(1u << ShiftOf(rows)) : 1.0f);
    const VF flipped_middle = hn::Sub(middle, one);
    const size_t stored = rows.dim / rows.format->group_size;
    const size_t copies = rows.format->group_size / group;
    const VI token = hn::Mul(hn::Iota(DI(), 0), hn::Set(DI(), static_cast<int32_t>(stored)));
    for (size_t g = 0; g < stored * copies; ++g) {
      const VF scale = hn::GatherIndex(df, scratch_.rows.scales + g / copies, token);
      const VF bias = hn::GatherIndex(df, scratch_.rows.biases + g / copies, token);
      const auto flipped = hn::Lt(scale, hn::Zero(df));
      const VF less = kPositive ? hn::IfThenElse(flipped, flipped_middle, middle) : middle;
      const size_t at = g * kTileTokens + slot;
      hn::BlendedStore(kPositive ? hn::Mul(hn::Abs(scale), one) : scale, taken, df, scales + at);
      hn::BlendedStore(hn::MulAdd(scale, less, bias), taken, df, biases + at);
    }
  }

  // After LoadParameters: what it widened still stands.
  template <bool kPositive>
  HWY_INLINE void LoadCodes(const RowRange& rows, Code* to, size_t pitch) {
    const hn::Rebind<Code, hn::CappedTag<int16_t, 32>> d;
    const auto middle = hn::Set(d, static_cast<Code>(1 << (rows.format->bits - 1)));
    const int shift = kPositive ? static_cast<int>(ShiftOf(rows)) : 0;
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
          if (kPositive) code = hn::Xor(ShiftedLeft(code, shift), flip);
          hn::StoreU(code, d, to + i);
        }
      }
    }
  }
  HWY_INLINE uint32_t ShiftOf(const RowRange& values) const {
    return job_.value_bits - values.format->bits;
  }
  // Bytes have no shift of their own: what a code is multiplied by leaves its neighbour alone.
  template <class V>
  static HWY_INLINE V ShiftedLeft(V codes, int shift) {
    if (shift == 0) return codes;
    const hn::DFromV<V> d;
    const hn::Repartition<uint16_t, hn::DFromV<V>> d16;
    const auto kept = hn::Set(d, static_cast<hn::TFromD<decltype(d)>>(-1 * (1 << shift)));
    return hn::And(hn::BitCast(d, hn::ShiftLeftSame(hn::BitCast(d16, codes), shift)), kept);
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
