// Attention of one slice on codes, without turning them into floats: included once per target.
// Compiled for targets with an instruction for it only.
//
// A group of a stored row is code * scale + bias. Hence q . k is scale * (q . codes) + bias *
// sum(q), and the sum of weights times values is that of (weight * scale) * codes plus that of
// weight * bias. With q and weight * scale rounded to 16 bits the products with codes are exact
// integers: twice the rate of floats, and no order of adding to keep.
// Both roundings together stay below those that the tests allow floats.
#if defined(PREFIXD_KERNELS_ATTEND_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_ATTEND_CODES_INL_H_
#undef PREFIXD_KERNELS_ATTEND_CODES_INL_H_
#else
#define PREFIXD_KERNELS_ATTEND_CODES_INL_H_
#endif

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/blocks-inl.h"
#include "kernels/code_tile-inl.h"
#include "kernels/gemm-inl.h"
#include "kernels/softmax-inl.h"
#include "kernels/tile_row-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

inline constexpr float kQueryLimit = 32767;

class CodeAttention {
 public:
  HWY_INLINE CodeAttention(const AttendJob& job, const AttendSlice& slice,
                           const AttendScratch& scratch)
      : job_(job),
        scratch_(scratch),
        code_(scratch.code),
        place_(job, slice),
        row_heads_(place_.row_heads()),
        key_groups_(job.shape.key_dim / job.key_group),
        value_groups_(job.shape.value_dim / job.value_group),
        tile_(job, slice.kv_head, scratch) {}

  HWY_ATTR void Run() {
    for (uint32_t i = 0; i < row_heads_; ++i) LoadQuery(i);
    const uint64_t end = place_.PositionOf(row_heads_ - 1) + 1;
    for (uint64_t begin = 0; begin < end; begin += kTileTokens) {
      tile_.Load(begin, place_.VisibleIn(begin, row_heads_ - 1));
      for (uint32_t first = 0; first < row_heads_; first += kMaxTileRows) {
        AttendStrip(begin, first, HWY_MIN(kMaxTileRows, row_heads_ - first));
      }
    }
    for (uint32_t i = 0; i < row_heads_; ++i) StoreOutput(i);
  }

 private:
  // What the rows of a strip see of the tile, and its part in their softmax. Room for whole
  // vectors.
  struct Strip {
    uint32_t first = 0;
    uint32_t rows = 0;
    uint32_t most = 0;  // tokens that the row sees which sees most
    uint32_t counts[kMaxTileRows];
    alignas(64) float maxima[16];        // of the tile
    alignas(64) float corrections[16];   // of what the rows had before
    alignas(64) float tile_factors[16];  // of what the tile adds
  };

  HWY_ATTR void LoadQuery(uint32_t row) {
    constexpr float kLog2E = 1.44269504f;  // weights are powers of 2
    const float* from = place_.QueryOf(row);
    float largest = 0;
    float nan = 0;  // or 0
    for (uint32_t d = 0; d < job_.shape.key_dim; ++d) {
      largest = HWY_MAX(largest, std::fabs(from[d]));
      nan += from[d] * 0;
    }
    const float inverse = largest >= FLT_MIN ? kQueryLimit / largest : 0;
    code_.query_steps[row] = largest / kQueryLimit * (job_.shape.scale * kLog2E) + nan;
    int32_t* pairs = code_.query + row * (scratch_.key_pitch / 2);
    for (size_t g = 0; g < key_groups_; ++g) {
      VI sum = hn::Zero(DI());
      for (size_t d = g * job_.key_group; d < (g + 1) * job_.key_group; d += hn::Lanes(DI())) {
        const VI codes = RoundToCode(hn::Mul(hn::LoadU(DF(), from + d), hn::Set(DF(), inverse)));
        StoreCodes(codes, reinterpret_cast<int16_t*>(pairs) + d);
        sum = hn::Add(sum, codes);
      }
      code_.query_sums[row * key_groups_ + g] =
          static_cast<float>(hn::GetLane(hn::SumOfLanes(DI(), sum)));
    }
    float* sums = scratch_.sums + row * scratch_.value_pitch;
    for (size_t d = 0; d < scratch_.value_pitch; ++d) sums[d] = 0;
    scratch_.states[row] = {-FLT_MAX, 0};
  }

  HWY_ATTR void AttendStrip(uint64_t begin, uint32_t first, uint32_t rows) {
    Strip strip;
    strip.first = first;
    strip.rows = rows;
    // Positions grow with the row: what the first one sees, all see.
    strip.counts[0] = place_.VisibleIn(begin, first);
    const bool all = strip.counts[0] == kTileTokens;
    for (uint32_t r = 1; r < rows; ++r) {
      strip.counts[r] = all ? kTileTokens : place_.VisibleIn(begin, first + r);
    }
    strip.most = strip.counts[rows - 1];
    if (strip.most == 0) return;
    MultiplyKeys(strip);
    for (uint32_t r = 0; r < rows; ++r) strip.maxima[r] = Score(strip, r);
    MergeMaxima(&strip);
    for (uint32_t r = 0; r < rows; ++r) Weigh(strip, r);
    MultiplyValues(strip);
    for (uint32_t r = 0; r < rows; ++r) {
      if (strip.counts[r] > 0) AddValues(strip, r);
    }
  }

  HWY_INLINE int32_t* DotsOf(size_t group) const {
    return code_.dots + group * kMaxTileRows * kTileTokens;
  }
  HWY_INLINE int32_t* WeightsOf(size_t group) const {
    return code_.weights + group * kMaxTileRows * kTileTokens / 2;
  }

  HWY_INLINE void MultiplyKeys(const Strip& strip) {
    const size_t pitch = scratch_.key_pitch / 2;
    const size_t depth = job_.key_group / 2;
    for (size_t g = 0; g < key_groups_; ++g) {
      Multiply<PairElement>({.a = code_.query + strip.first * pitch + g * depth,
                             .a_pitch = pitch,
                             .b = code_.keys + g * depth * kTileTokens,
                             .b_pitch = kTileTokens,
                             .depth = depth,
                             .row_scale = nullptr,
                             .c = DotsOf(g),
                             .c_pitch = kTileTokens,
                             .columns = strip.most},
                            strip.rows);
    }
  }

  // Turns the row's dots into scores, still to be multiplied by its step. Returns their maximum,
  // multiplied.
  HWY_INLINE float Score(const Strip& strip, uint32_t r) {
    if (strip.counts[r] == 0) return -FLT_MAX;
    const uint32_t row = strip.first + r;
    const float* query_sums = code_.query_sums + row * key_groups_;
    TileRow64 scores = TileRow64::Fill(0);
    for (size_t g = 0; g < key_groups_; ++g) {
      const TileRow64 dots = TileRow64::Load(DotsOf(g) + r * kTileTokens);
      const TileRow64 scales = TileRow64::Load(code_.key_scales + g * kTileTokens);
      const TileRow64 biases = TileRow64::Load(code_.key_biases + g * kTileTokens);
      scores = dots.MulAdd(scales, scores);
      scores = biases.MulAdd(TileRow64::Fill(query_sums[g]), scores);
    }
    scores.Store(scratch_.scores + r * kTileTokens);
    return scores.First(strip.counts[r], -FLT_MAX).Max() * code_.query_steps[row];
  }

  HWY_INLINE void MergeMaxima(Strip* strip) {
    const DF df;
    RowState* states = scratch_.states + strip->first;
    alignas(64) float before[16] = {};
    for (uint32_t r = 0; r < strip->rows; ++r) before[r] = states[r].max;
    for (uint32_t r = strip->rows; r < 16; ++r) strip->maxima[r] = 0;
    for (size_t r = 0; r < strip->rows; r += hn::Lanes(df)) {
      const VF old = hn::LoadU(df, before + r);
      const VF tile = hn::LoadU(df, strip->maxima + r);
      const VF max = hn::Max(old, tile);
      hn::StoreU(max, df, before + r);
      hn::StoreU(Exp2(hn::Sub(old, max)), df, strip->corrections + r);
      hn::StoreU(Exp2(hn::Sub(tile, max)), df, strip->tile_factors + r);
    }
    for (uint32_t r = 0; r < strip->rows; ++r) states[r].max = before[r];
  }

  // Scores to weights, times the values' scales, as codes; unseen tokens weigh 0.
  HWY_INLINE void Weigh(const Strip& strip, uint32_t r) {
    const uint32_t row = strip.first + r;
    const uint32_t count = strip.counts[r];
    const TileRow64 weights =
        TileRow64::Load(scratch_.scores + r * kTileTokens)
            .MulAdd(TileRow64::Fill(code_.query_steps[row]), TileRow64::Fill(-strip.maxima[r]))
            .Exp2()
            .First(count, 0);
    for (size_t g = 0; g < value_groups_; ++g) WeighValues(strip, r, g, weights);
    if (count == 0) return;
    RowState& state = scratch_.states[row];
    state.sum = state.sum * strip.corrections[r] + strip.tile_factors[r] * weights.Sum();
  }

  HWY_INLINE void WeighValues(const Strip& strip, uint32_t r, size_t group,
                              const TileRow64& weights) {
    const uint32_t count = strip.counts[r];
    const TileRow64 scales = TileRow64::Load(code_.value_scales + group * kTileTokens);
    const TileRow64 biases = TileRow64::Load(code_.value_biases + group * kTileTokens);
    // Weight 0 is not enough for unseen tokens: NaN would survive it.
    const TileRow64 products = weights.Times(scales).First(count, 0);
    const float offset = weights.Times(biases).First(count, 0).Sum();
    const float largest = products.Max();
    int32_t* codes = WeightsOf(group) + r * kTileTokens / 2;
    products.StoreAsCodes(largest >= 1e-30f ? kWeightLimit / largest : 0, kWeightMiddle,
                          reinterpret_cast<int16_t*>(codes));
    const float factor = strip.tile_factors[r];
    code_.value_steps[group * kMaxTileRows + r] = largest * (factor / kWeightLimit);
    code_.value_offsets[group * kMaxTileRows + r] = offset * factor;
  }

  HWY_INLINE void MultiplyValues(const Strip& strip) {
    for (size_t g = 0; g < value_groups_; ++g) {
      Multiply<PairElement>({.a = WeightsOf(g),
                             .a_pitch = kTileTokens / 2,
                             .b = code_.values + g * job_.value_group,
                             .b_pitch = scratch_.value_pitch,
                             .depth = kTileTokens / 2,
                             .row_scale = nullptr,
                             .c = code_.value_dots + g * job_.value_group,
                             .c_pitch = scratch_.value_pitch,
                             .columns = job_.value_group},
                            strip.rows);
    }
  }

  HWY_INLINE void AddValues(const Strip& strip, uint32_t r) {
    const DF df;
    float* sums = scratch_.sums + (strip.first + r) * scratch_.value_pitch;
    const int32_t* dots = code_.value_dots + r * scratch_.value_pitch;
    const VF correction = hn::Set(df, strip.corrections[r]);
    const int32_t* missing = code_.value_corrections;  // a local: stores could change a member
    const size_t group = job_.value_group;
    for (size_t g = 0; g < value_groups_; ++g, sums += group, dots += group, missing += group) {
      const VF step = hn::Set(df, code_.value_steps[g * kMaxTileRows + r]);
      const VF offset = hn::Set(df, code_.value_offsets[g * kMaxTileRows + r]);
      for (size_t d = 0; d < group; d += hn::Lanes(df)) {
        const VF before = hn::MulAdd(hn::LoadU(df, sums + d), correction, offset);
        const VI dot = hn::Add(hn::LoadU(DI(), dots + d), hn::LoadU(DI(), missing + d));
        hn::StoreU(hn::MulAdd(hn::ConvertTo(df, dot), step, before), df, sums + d);
      }
    }
  }

  HWY_ATTR void StoreOutput(uint32_t row) {
    const float* sums = scratch_.sums + row * scratch_.value_pitch;
    float* to = place_.OutOf(row);
    for (uint32_t d = 0; d < job_.shape.value_dim; ++d) to[d] = sums[d] / scratch_.states[row].sum;
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  const CodeScratch& code_;
  const SlicePlace place_;
  const uint32_t row_heads_;
  const size_t key_groups_;
  const size_t value_groups_;
  CodeTile tile_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
