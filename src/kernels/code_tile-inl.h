// Stored codes laid out for products of 16-bit pairs, for one SIMD target: included once per
// target.
#if defined(PREFIXD_KERNELS_CODE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_CODE_TILE_INL_H_
#undef PREFIXD_KERNELS_CODE_TILE_INL_H_
#else
#define PREFIXD_KERNELS_CODE_TILE_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/blocks-inl.h"
#include "kernels/gemm-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/softmax-inl.h"
#include "kernels/tile_row-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Weights are not negative: those of 16 bits go from 0 up and are stored less the middle. What that
// takes from each dot is the sum of the tile's codes times the middle.
inline constexpr float kWeightLimit = 65535;
inline constexpr int32_t kWeightMiddle = 1 << 15;

// Lays the codes of tokens out in pairs, K's turned round, and beside them each token's scales and
// biases. Codes are taken less the middle of their range, which makes products small, and the bias
// makes up for it. Values' codes change sign with a negative scale, so that their weights never do.
class CodeTile {
 public:
  HWY_INLINE CodeTile(const AttendJob& job, uint32_t kv_head, const AttendScratch& scratch)
      : job_(job), scratch_(scratch), code_(scratch.code), blocks_(job, kv_head) {}

  // Positions `begin` ... `begin + count - 1`; calls go upwards. What is behind them stays finite.
  HWY_ATTR void Load(uint64_t begin, uint32_t count) {
    for (uint32_t slot = 0; slot < count; slot += kStepTokens) {
      LoadStep(begin + slot, slot, HWY_MIN(kStepTokens, count - slot));
      TransposeRows(code_.key_rows, scratch_.key_pitch / 2, job_.shape.key_dim / 2,
                    code_.keys + slot, kTileTokens);
      PairTokens(code_.values + slot / 2 * scratch_.value_pitch);
    }
    PrepareCorrections();
  }

 private:
  HWY_INLINE void LoadStep(uint64_t begin, uint32_t slot, uint32_t count) {
    const size_t key_pitch = scratch_.key_pitch / 2;
    const size_t value_pitch = scratch_.value_pitch / 2;
    for (uint32_t done = 0; done < count;) {
      const uint32_t run = blocks_.Take(begin + done, count - done);
      LoadParameters<false>(blocks_.keys(), slot + done, job_.key_group, code_.key_scales,
                            code_.key_biases);
      LoadCodes<false>(blocks_.keys(), code_.key_rows + done * key_pitch, key_pitch);
      LoadParameters<true>(blocks_.values(), slot + done, job_.value_group, code_.value_scales,
                           code_.value_biases);
      LoadCodes<true>(blocks_.values(), code_.value_rows + done * value_pitch, value_pitch);
      done += run;
    }
  }

  template <bool kPositive>
  HWY_INLINE void LoadParameters(const RowRange& rows, uint32_t slot, uint32_t group, float* scales,
                                 float* biases) {
    WidenParameters(rows, scratch_.rows);
    const float middle = static_cast<float>(1u << (rows.format->bits - 1));
    const size_t stored = rows.dim / rows.format->group_size;
    const size_t copies = rows.format->group_size / group;
    for (size_t g = 0; g < stored * copies; ++g) {
      const float* from_scale = scratch_.rows.scales + g / copies;
      const float* from_bias = scratch_.rows.biases + g / copies;
      float* to_scale = scales + g * kTileTokens + slot;
      float* to_bias = biases + g * kTileTokens + slot;
      for (uint32_t t = 0; t < rows.count; ++t) {
        const float scale = from_scale[t * stored];
        to_scale[t] = kPositive ? std::fabs(scale) : scale;
        to_bias[t] = from_bias[t * stored] + scale * middle;
      }
    }
  }

  // After LoadParameters: what it widened still stands.
  template <bool kPositive>
  HWY_INLINE void LoadCodes(const RowRange& rows, int32_t* to, size_t pitch) {
    const DI16 di16;
    const auto middle = hn::Set(di16, static_cast<int16_t>(1 << (rows.format->bits - 1)));
    const size_t group = rows.format->group_size;
    const float* scale = scratch_.rows.scales;
    const std::byte* from =
        rows.unit + rows.layout.codes_offset + size_t{rows.first} * rows.row.codes;
    for (uint32_t t = 0; t < rows.count; ++t, from += rows.row.codes, to += pitch) {
      const uint8_t* codes = AffineCodes(rows.format->bits, from, rows.dim, scratch_.rows.codes);
      int16_t* row = reinterpret_cast<int16_t*>(to);
      for (size_t begin = 0; begin < rows.dim; begin += group, ++scale) {
        const auto flip = hn::Set(di16, kPositive && *scale < 0 ? int16_t{-1} : int16_t{0});
        for (size_t i = begin; i < begin + group; i += hn::Lanes(di16)) {
          auto code = hn::Sub(hn::PromoteTo(di16, hn::LoadU(DU8(), codes + i)), middle);
          if (kPositive) code = hn::Sub(hn::Xor(code, flip), flip);
          hn::StoreU(code, di16, row + i);
        }
      }
    }
  }

  // Rows 2 k and 2 k + 1 become row k of pairs.
  HWY_INLINE void PairTokens(int32_t* to) {
    const DU du;
    const size_t pitch = scratch_.value_pitch / 2;
    const size_t lanes = hn::Lanes(du);
    for (uint32_t t = 0; t < kStepTokens; t += 2, to += scratch_.value_pitch) {
      const auto* even = reinterpret_cast<const uint16_t*>(code_.value_rows + t * pitch);
      const auto* odd = reinterpret_cast<const uint16_t*>(code_.value_rows + (t + 1) * pitch);
      for (size_t i = 0; i < job_.shape.value_dim; i += lanes) {
        const auto low = hn::PromoteTo(du, hn::LoadU(DU16(), even + i));
        const auto high = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(DU16(), odd + i)));
        hn::StoreU(hn::BitCast(DI(), hn::Or(low, high)), DI(), to + i);
      }
    }
  }

  // What weights that are stored less the middle leave out.
  HWY_INLINE void PrepareCorrections() {
    const DI di;
    const VI ones = hn::Set(di, 0x00010001);
    for (size_t d = 0; d < job_.shape.value_dim; d += hn::Lanes(di)) {
      VI sum = hn::Zero(di);
      for (uint32_t pair = 0; pair < kTileTokens / 2; ++pair) {
        const int32_t* codes = code_.values + pair * scratch_.value_pitch + d;
        sum = PairElement::MulAdd(ones, hn::LoadU(di, codes), sum);
      }
      hn::StoreU(hn::Mul(sum, hn::Set(di, kWeightMiddle)), di, code_.value_corrections + d);
    }
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  const CodeScratch& code_;
  BlockCursor blocks_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
