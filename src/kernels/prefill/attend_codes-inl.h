// Attention of one slice on stored codes, without turning them into floats: included once per
// target. Compiled only for targets with an instruction that multiplies bytes.
//
// An element of a stored row is byte * scale + bias. Hence q . k is scale * (q . bytes) + bias *
// sum(q), and the sum of weights times values is the sum of (weight * scale) * bytes plus the sum
// of weight * bias. With q and weight * scale rounded to 16 bits (8 with one digit) the products
// with bytes are exact integers, whatever the order of adding and the instructions.
// With two digits both rounding errors together stay below the error that the tests allow floats.
#if defined(PREFIXD_KERNELS_PREFILL_ATTEND_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_ATTEND_CODES_INL_H_
#undef PREFIXD_KERNELS_PREFILL_ATTEND_CODES_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_ATTEND_CODES_INL_H_
#endif

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/tile_row-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/blocks-inl.h"
#include "kernels/prefill/code_factors-inl.h"
#include "kernels/prefill/code_matrix-inl.h"
#include "kernels/prefill/code_softmax-inl.h"
#include "kernels/prefill/code_tile-inl.h"
#include "kernels/prefill/code_vectors-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Products is VectorProducts<Digits> or MatrixProducts<Digits>.
template <class Digits, class Products>
class CodeAttention {
 public:
  HWY_INLINE CodeAttention(const AttendJob& job, const AttendSlice& slice,
                           const AttendScratch& scratch, TokenKind kind)
      : job_(job),
        scratch_(scratch),
        code_(scratch.code),
        place_(job, slice),
        kinds_(job, kind),
        row_heads_(place_.row_heads()),
        key_groups_(job.shape.key_dim / job.key_group),
        value_groups_(job.shape.value_dim / job.value_group),
        factors_(job, scratch),
        products_(factors_),
        tile_(job, slice.kv_head, scratch, Products::TakesNibbles(row_heads_)),
        softmax_(job, scratch, factors_) {}

  HWY_ATTR void Run() {
    for (uint32_t i = 0; i < row_heads_; ++i) LoadQuery(i);
    const uint64_t end = place_.PositionOf(row_heads_ - 1) + 1;
    TilePart tile = PartOf(place_.FirstTile());
    while (tile.begin < end) {
      const TilePart next = PartOf(place_.TileAfter(tile.begin));
      if (tile.tokens != 0) AttendTile(tile, next);
      tile = next;
    }
    for (uint32_t i = 0; i < row_heads_; ++i) StoreOutput(i);
  }

 private:
  HWY_INLINE TilePart PartOf(uint64_t begin) {
    return {begin, kinds_.Of(begin, place_.NeededIn(begin))};
  }

  HWY_ATTR void AttendTile(const TilePart& tile, const TilePart& next) {
    tile_.Load(tile, next);
    softmax_.StartTile();
    for (uint32_t first = 0; first < row_heads_; first += kStripRows) {
      AttendStrip(tile, first, HWY_MIN(kStripRows, row_heads_ - first));
    }
  }

  HWY_ATTR void LoadQuery(uint32_t row) {
    constexpr float kLog2E = 1.44269504f;  // weights are powers of 2
    const AttentionShape& shape = job_.shape;
    const float scale = shape.soft_cap == 0 ? shape.scale * kLog2E : shape.scale / shape.soft_cap;
    const float* from = place_.QueryOf(row);
    VF sizes = hn::Zero(DF());
    VF nans = hn::Zero(DF());  // NaN where an element is not finite, else 0
    for (size_t d = 0; d < shape.key_dim; d += hn::Lanes(DF())) {
      const VF elements = hn::LoadU(DF(), from + d);
      sizes = hn::Max(sizes, hn::Abs(elements));
      nans = hn::MulAdd(elements, hn::Zero(DF()), nans);
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(DF(), sizes));
    const float nan = hn::GetLane(hn::SumOfLanes(DF(), nans));
    // The codes take the sign of the scale, so that the largest dot gives the largest score.
    const float inverse =
        largest >= FLT_MIN ? std::copysign(Digits::kQueryLimit / largest, scale) : 0;
    code_.query_steps[row] = largest / Digits::kQueryLimit * std::fabs(scale) + nan;
    for (size_t g = 0; g < key_groups_; ++g) {
      VI sum = hn::Zero(DI());
      for (size_t d = g * job_.key_group; d < (g + 1) * job_.key_group; d += hn::Lanes(DI())) {
        const VI codes = RoundedProduct(hn::LoadU(DF(), from + d), hn::Set(DF(), inverse));
        factors_.StoreQuery(row, d, codes);
        sum = hn::Add(sum, codes);
      }
      code_.query_sums[row * key_groups_ + g] =
          static_cast<float>(hn::GetLane(hn::SumOfLanes(DI(), sum)));
    }
    float* sums = scratch_.sums + row * scratch_.value_pitch;
    for (size_t d = 0; d < scratch_.value_pitch; ++d) sums[d] = 0;
    softmax_.StartRow(row, place_.FirstMaximum(row), place_.FirstWeight(row));
  }

  HWY_ATTR void AttendStrip(const TilePart& tile, uint32_t first, uint32_t rows) {
    CodeStrip strip;
    strip.first = first;
    strip.rows = rows;
    // Without a window all rows see what the first row sees: positions grow with the row.
    strip.seen[0] = place_.SeenIn(tile.begin, first) & tile.tokens;
    const bool all = strip.seen[0] == kAllTokens && job_.shape.window == 0;
    TileTokens any = strip.seen[0];
    for (uint32_t r = 1; r < rows; ++r) {
      any |= strip.seen[r] = all ? kAllTokens : place_.SeenIn(tile.begin, first + r) & tile.tokens;
    }
    if (any == 0) return;
    for (size_t g = 0; g < key_groups_; ++g) {
      products_.MultiplyKeys(strip, g, tile_.keys());
      tile_.Prefetch();
      softmax_.Score(strip, g);
    }
    tile_.Prefetch();
    softmax_.Weigh(strip);
    for (size_t g = 0; g < value_groups_; ++g) {
      tile_.Prefetch();
      products_.MultiplyValues(strip, g, tile_.values());
      tile_.Prefetch();
      AddValues(strip, g);
    }
  }

  // sums += dots * steps of the group.
  HWY_INLINE void AddValues(const CodeStrip& strip, size_t group) const {
    const DF df;
    const size_t dims = job_.value_group, pitch = scratch_.value_pitch;
    const CodeDots<Digits> dots(factors_.dots(), dims);
    float* sums = scratch_.sums + strip.first * pitch + group * dims;
    const float* steps = code_.value_steps + group * kStripRows;
    for (uint32_t r = 0; r < strip.rows; ++r, sums += pitch) {
      const VF step = hn::Set(df, steps[r]);
      for (size_t d = 0; d < dims; d += hn::Lanes(df)) {
        const VF more = dots.From(r, d);
        hn::StoreU(hn::MulAdd(more, step, hn::LoadU(df, sums + d)), df, sums + d);
      }
    }
  }

  HWY_ATTR void StoreOutput(uint32_t row) {
    const float* sums = scratch_.sums + row * scratch_.value_pitch;
    const float sum = softmax_.SumOfWeights(row);
    code_.totals[row] = sum;
    float* to = place_.OutOf(row);
    for (size_t g = 0; g < value_groups_; ++g) {
      const float bias = softmax_.SumOfBiases(row, g);
      for (size_t d = 0; d < job_.value_group; d += hn::Lanes(DF())) {
        const VF total = hn::Add(hn::LoadU(DF(), sums + d), hn::Set(DF(), bias));
        hn::StoreU(hn::Div(total, hn::Set(DF(), sum)), DF(), to + d);
      }
      sums += job_.value_group;
      to += job_.value_group;
    }
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  const CodeScratch& code_;
  const SlicePlace place_;
  KindMap kinds_;
  const uint32_t row_heads_;
  const size_t key_groups_;
  const size_t value_groups_;
  const CodeFactors<Digits> factors_;
  const Products products_;
  CodeTile<Digits> tile_;
  CodeSoftmax<Digits> softmax_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
