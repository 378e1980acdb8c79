// Online softmax of a strip of row heads over one tile, for one SIMD target: included once per
// target.
#if defined(PREFIXD_KERNELS_DECODE_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_SOFTMAX_INL_H_
#undef PREFIXD_KERNELS_DECODE_SOFTMAX_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_SOFTMAX_INL_H_
#endif

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/tile_row-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/tile-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Row heads of one kv head that are computed together, over one tile.
struct DecodeStrip {
  uint32_t rows = 0;                // 1 ... kStripHeads
  size_t first = 0;                 // index of the first one in job.sums
  uint64_t seen[kStripHeads] = {};  // bit t: the row head sees token t of the tile
  float corrections[kStripHeads];   // factors for their earlier weights
  HWY_INLINE bool all_seen() const {
    uint64_t all = ~uint64_t{0};
    for (uint32_t r = 0; r < rows; ++r) all &= seen[r];
    return all == ~uint64_t{0};
  }
};

// The tokens of a tile that a row head sees. Token t is lane t % 16 of vector t / 16.
class SeenTokens {
 public:
  explicit HWY_INLINE SeenTokens(uint64_t seen) : seen_(seen) {}
  HWY_INLINE bool all() const { return seen_ == ~uint64_t{0}; }
  HWY_INLINE VF Choose(size_t vector, VF yes, VF no) const {
    return VF{_mm512_mask_blend_ps(MaskOf(vector), no.raw, yes.raw)};
  }
  HWY_INLINE VF Keep(size_t vector, VF value) const {
    return VF{_mm512_maskz_mov_ps(MaskOf(vector), value.raw)};
  }

 private:
  HWY_INLINE __mmask16 MaskOf(size_t vector) const {
    return static_cast<__mmask16>(seen_ >> (vector * kLanes));
  }
  const uint64_t seen_;
};

// A row head's weights are 2^(score - reference). The reference is a score that it has seen. It
// moves to the largest score only where that is this much larger: waiting for the largest score of
// each tile takes longer than computing all its weights.
inline constexpr float kMostAboveReference = 16;

// Whether a score is too large for `reference`, or is NaN.
HWY_INLINE bool IsAbove(VF scores, float reference) {
  const VF limit = hn::Set(DF(), reference + kMostAboveReference);
  return _mm512_cmp_ps_mask(scores.raw, limit.raw, _CMP_NLE_UQ) != 0;
}
// Makes the largest of `scores` the reference and corrects the sum of weights. Returns the factor
// for earlier weights.
HWY_NOINLINE HWY_ATTR float RaiseReference(const DecodeSums& sums, size_t row_head, VF scores) {
  const DF df;
  float& reference = sums.references[row_head];
  const VF before = hn::Set(df, reference);
  const VF max = hn::Max(hn::MaxOfLanes(df, scores), before);
  const VF correction = WeightExp2(hn::Sub(before, max));
  float* const weights = sums.weights + row_head * kLanes;
  hn::StoreU(hn::Mul(hn::LoadU(df, weights), correction), df, weights);
  reference = hn::GetLane(max);
  return hn::GetLane(correction);
}

// Turns scores into weights, 0 for tokens that the row head does not see. `cap` is in powers of 2,
// 0 for none. Returns the factor for earlier weights.
HWY_INLINE float WeighRowHead(const DecodeSums& sums, size_t row_head, SeenTokens seen, float cap,
                              float* scores) {
  const DF df;
  TileRow64 row = TileRow64::Load(scores);
  if (cap != 0) row = row.Capped(cap);
  if (!seen.all()) {
    const VF lowest = hn::Set(df, -FLT_MAX);
    row = {seen.Choose(0, row.v0, lowest), seen.Choose(1, row.v1, lowest),
           seen.Choose(2, row.v2, lowest), seen.Choose(3, row.v3, lowest)};
  }
  // Exactly 1 where nothing changes: a tile that the row head does not see changes no bit.
  float correction = 1;
  const VF largest = row.MaxAcross();
  if (HWY_UNLIKELY(IsAbove(largest, sums.references[row_head]))) {
    correction = RaiseReference(sums, row_head, largest);
  }
  const VF reference = hn::Set(df, sums.references[row_head]);
  row = TileRow64{hn::Sub(row.v0, reference), hn::Sub(row.v1, reference),
                  hn::Sub(row.v2, reference), hn::Sub(row.v3, reference)}
            .Exp2();
  if (!seen.all()) {
    row = {seen.Keep(0, row.v0), seen.Keep(1, row.v1), seen.Keep(2, row.v2), seen.Keep(3, row.v3)};
  }
  row.Store(scores);
  float* const weights = sums.weights + row_head * kLanes;
  hn::StoreU(hn::Add(hn::LoadU(df, weights), row.SumAcross()), df, weights);
  return correction;
}

// Turns scratch.scores into weights. Updates the sums of weights, not those of values.
HWY_NOINLINE HWY_ATTR void WeighStrip(const DecodeJob& job, const DecodeScratch& scratch,
                                      LineAsker* asker, DecodeStrip* strip) {
  for (uint32_t r = 0; r < strip->rows; ++r) {
    asker->Ask<kLinesToWeigh>();
    strip->corrections[r] =
        WeighRowHead(job.sums, strip->first + r, SeenTokens(strip->seen[r]),
                     job.shape.soft_cap * kLog2E, scratch.scores + r * kDecodeTile);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
