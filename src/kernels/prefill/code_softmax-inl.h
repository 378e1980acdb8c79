// Online softmax of a strip of rows on codes, for one SIMD target: included once per target.
//
// A row's sums and maxima are kept a vector wide as long as possible: sums until the end, maxima
// until those of a whole strip are found together.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_SOFTMAX_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_SOFTMAX_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_SOFTMAX_INL_H_
#endif

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/softmax-inl.h"
#include "kernels/common/tile_row-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/code_factors-inl.h"
#include "kernels/prefill/code_strip-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

template <class Digits>
class CodeSoftmax {
 public:
  HWY_INLINE CodeSoftmax(const AttendJob& job, const AttendScratch& scratch,
                         const CodeFactors<Digits>& factors)
      : factors_(factors),
        code_(scratch.code),
        sums_(scratch.sums),
        scores_(scratch.scores),
        steps_(job.shape.soft_cap == 0 ? scratch.code.query_steps : scratch.code.ones),
        cap_(job.shape.soft_cap * kLog2E),
        value_pitch_(scratch.value_pitch),
        key_groups_(job.shape.key_dim / job.key_group),
        value_groups_(job.shape.value_dim / job.value_group) {}

  // Starts a row with the learned sink's score and weight, if any.
  HWY_INLINE void StartRow(uint32_t row, float maximum, float weight) {
    code_.maxima[row] = maximum;
    hn::StoreU(hn::Zero(DF()), DF(), code_.weight_sums + row * kLanes);
    code_.weight_sums[row * kLanes] = weight;
    for (size_t g = 0; g < value_groups_; ++g) {
      hn::StoreU(hn::Zero(DF()), DF(), BiasSums(row, g));
    }
  }

  // Adds the group's dots to the rows' scores, which are still to be multiplied by their steps.
  HWY_INLINE void Score(const CodeStrip& strip, size_t group) {
    const TileRow64 scales = TileRow64::Load(code_.key_scales + group * kTileTokens);
    const TileRow64 biases = TileRow64::Load(code_.key_biases + group * kTileTokens);
    const CodeDots<Digits> dots(factors_.dots(), kTileTokens);
    const size_t query_sum_pitch = key_groups_;
    const float* query_sums = code_.query_sums + strip.first * query_sum_pitch + group;
    const bool first = group == 0, last = group + 1 == key_groups_;
    float* to = scores_;
    float* maxima = code_.row_lanes;
    for (uint32_t r = 0; r < strip.rows; ++r) {
      const TileRow64 row{dots.From(r, 0), dots.From(r, kLanes), dots.From(r, 2 * kLanes),
                          dots.From(r, 3 * kLanes)};
      const TileRow64 sum = TileRow64::Fill(*query_sums);
      const TileRow64 bias = first ? biases.Times(sum) : biases.MulAdd(sum, TileRow64::Load(to));
      TileRow64 scores = row.MulAdd(scales, bias);
      if (last && cap_ != 0) {
        scores = scores.Times(TileRow64::Fill(code_.query_steps[strip.first + r])).Capped(cap_);
      }
      scores.Store(to);
      if (last) {
        hn::StoreU(scores.Of(strip.seen[r], -FLT_MAX).MaxAcross(), DF(), maxima + r * kLanes);
      }
      to += kTileTokens;
      query_sums += query_sum_pitch;
    }
  }

  // Finds the largest scale of each value group. Requires: the tile's value scales are loaded.
  HWY_INLINE void StartTile() const {
    for (size_t g = 0; g < value_groups_; ++g)
      code_.largest_scales[g] = LargestScale(g, kAllTokens);
  }

  // Turns scores into weights times the values' scales, as codes. Corrects the rows' earlier sums
  // to their new maxima.
  HWY_INLINE void Weigh(const CodeStrip& strip) {
    RaiseMaxima(strip);
    for (size_t g = 0; g < value_groups_; ++g) FindSteps(strip, g);
    for (uint32_t r = 0; r < strip.rows; ++r) {
      if (strip.seen[r] == kAllTokens) {
        WeighRow<false>(strip, r);
      } else {
        WeighRow<true>(strip, r);
      }
    }
  }

  HWY_INLINE float SumOfWeights(uint32_t row) const {
    return SumOfLanes(code_.weight_sums + row * kLanes);
  }
  HWY_INLINE float SumOfBiases(uint32_t row, size_t group) const {
    return SumOfLanes(BiasSums(row, group));
  }

 private:
  static constexpr float kLog2E = 1.44269504f;
  static constexpr size_t kLanes = TileRow64::kLanes;
  static_assert(kStripRows == kLanes);

  static HWY_INLINE float SumOfLanes(const float* lanes) {
    return hn::GetLane(hn::SumOfLanes(DF(), hn::LoadU(DF(), lanes)));
  }
  HWY_INLINE float* BiasSums(uint32_t row, size_t group) const {
    return code_.bias_sums + (row * value_groups_ + group) * kLanes;
  }
  HWY_INLINE void RaiseMaxima(const CodeStrip& strip) {
    const DF df;
    float* maxima = code_.maxima + strip.first;
    const VF before = hn::LoadU(df, maxima);
    const VF tile = hn::Mul(MaxOfRows(code_.row_lanes), hn::LoadU(df, steps_ + strip.first));
    const VF max = hn::Max(before, tile);
    const auto raised = hn::And(hn::FirstN(df, strip.rows), hn::Ne(before, max));
    hn::StoreU(Exp2(hn::Sub(tile, max)), df, code_.largest_weights);
    if (hn::AllFalse(df, raised)) return;
    hn::StoreU(max, df, maxima);
    alignas(64) float corrections[kLanes];
    hn::Store(hn::IfThenElse(raised, Exp2(hn::Sub(before, max)), hn::Set(df, 1)), df, corrections);
    for (uint32_t r = 0; r < strip.rows; ++r) Correct(strip.first + r, corrections[r]);
  }

  HWY_NOINLINE void Correct(uint32_t row, float correction) const {
    if (correction == 1.0f) return;
    Scale(code_.weight_sums + row * kLanes, kLanes, correction);
    Scale(BiasSums(row, 0), value_groups_ * kLanes, correction);
    Scale(sums_ + row * value_pitch_, value_pitch_, correction);
  }
  static HWY_INLINE void Scale(float* values, size_t count, float factor) {
    const DF df;
    for (size_t i = 0; i < count; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(df, values + i), hn::Set(df, factor)), df, values + i);
    }
  }

  // kPartly: the row does not see the whole tile. Weight 0 is not enough for unseen tokens: NaN
  // would survive it.
  template <bool kPartly>
  HWY_INLINE void WeighRow(const CodeStrip& strip, uint32_t r) {
    const uint32_t row = strip.first + r;
    const TileTokens seen = kPartly ? strip.seen[r] : kAllTokens;
    const TileRow64 weights =
        TileRow64::Load(scores_ + r * kTileTokens)
            .MulAdd(TileRow64::Fill(steps_[row]), TileRow64::Fill(-code_.maxima[row]))
            .Exp2()
            .Of(seen, 0);
    AddTo(code_.weight_sums + row * kLanes, weights.SumAcross());
    for (size_t g = 0; g < value_groups_; ++g) {
      const size_t at = g * kStripRows + r;
      const TileRow64 scales = TileRow64::Load(code_.value_scales + g * kTileTokens);
      const TileRow64 biases = TileRow64::Load(code_.value_biases + g * kTileTokens).Of(seen, 0);
      const TileRow64 products = weights.Times(scales).Of(seen, 0);
      const TileRow64 codes = products.Times(TileRow64::Fill(code_.value_inverses[at]));
      VF lanes = hn::LoadU(DF(), BiasSums(row, g));
      if constexpr (Digits::kSignedValues) {
        factors_.StoreBytes(g, r, codes);
      } else {
        // Biases are for bytes less 128, but whole bytes are multiplied: subtract the difference.
        const VF middle = hn::Set(DF(), code_.value_steps[at] * -kCodeMiddle);
        lanes = hn::MulAdd(hn::ConvertTo(DF(), factors_.StoreDigits(g, r, codes)), middle, lanes);
      }
      hn::StoreU(weights.SumOfProducts(biases, lanes), DF(), BiasSums(row, g));
    }
  }
  static HWY_INLINE void AddTo(float* lanes, VF more) {
    hn::StoreU(hn::Add(hn::LoadU(DF(), lanes), more), DF(), lanes);
  }

  HWY_INLINE float LargestScale(size_t group, TileTokens seen) const {
    const TileRow64 scales = TileRow64::Load(code_.value_scales + group * kTileTokens);
    return hn::GetLane(hn::MaxOfLanes(DF(), scales.Of(seen, 0).LargestAcross()));
  }
  // A row's largest weight in the tile times the largest scale that it sees there becomes the
  // largest code. That is close enough: scales of a tile are much alike.
  HWY_INLINE void FindSteps(const CodeStrip& strip, size_t group) const {
    const DF df;
    alignas(64) float scales[kLanes];
    hn::Store(hn::Set(df, code_.largest_scales[group]), df, scales);
    for (uint32_t r = 0; r < strip.rows; ++r) {
      if (strip.seen[r] != kAllTokens) scales[r] = LargestScale(group, strip.seen[r]);
    }
    const VF largest = hn::Mul(hn::Load(df, scales), hn::LoadU(df, code_.largest_weights));
    const VF limit = hn::Set(df, Digits::kWeightLimit);
    const size_t at = group * kStripRows;
    hn::StoreU(hn::IfThenElseZero(hn::Ge(largest, hn::Set(df, 1e-30f)), hn::Div(limit, largest)),
               df, code_.value_inverses + at);
    hn::StoreU(hn::Div(largest, limit), df, code_.value_steps + at);
  }

  const CodeFactors<Digits>& factors_;
  const CodeScratch& code_;
  float* const sums_;
  float* const scores_;
  const float* const steps_;  // what 1 of a score is worth
  const float cap_;           // soft cap in powers of 2, or 0
  const size_t value_pitch_;
  const size_t key_groups_;
  const size_t value_groups_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
