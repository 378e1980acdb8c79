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
#include "kernels/common/softmax-inl.h"
#include "kernels/common/tile_row-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/tile-inl.h"

#if PREFIXD_KERNELS_HAVE_DECODE
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Row heads of one kv head that are computed together, over one tile.
struct DecodeStrip {
  uint32_t rows = 0;                // 1 ... kStripHeads
  size_t first = 0;                 // index of the first one in job.sums
  uint64_t seen[kStripHeads] = {};  // bit t: the row head sees token t of the tile
  HWY_INLINE bool all_seen() const {
    uint64_t all = ~uint64_t{0};
    for (uint32_t r = 0; r < rows; ++r) all &= seen[r];
    return all == ~uint64_t{0};
  }
};

// The tokens of a tile that a row head sees. Token t is lane t % kLanes of vector t / kLanes.
class SeenTokens {
 public:
  explicit HWY_INLINE SeenTokens(uint64_t seen) : seen_(seen) {}
  HWY_INLINE bool all() const { return seen_ == ~uint64_t{0}; }
#if PREFIXD_KERNELS_HAVE_PAIRS
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
#else
  HWY_INLINE VF Choose(size_t vector, VF yes, VF no) const {
    return hn::IfThenElse(MaskOf(vector), yes, no);
  }
  HWY_INLINE VF Keep(size_t vector, VF value) const {
    return hn::IfThenElseZero(MaskOf(vector), value);
  }

 private:
  HWY_INLINE hn::Mask<DF> MaskOf(size_t vector) const {
    const uint64_t bits = seen_ >> (vector * kLanes);
    return hn::LoadMaskBits(DF(), reinterpret_cast<const uint8_t*>(&bits));
  }
#endif
  const uint64_t seen_;
};

// A row head's weights are 2^(score - reference). The reference is a score that it has seen. It
// moves to the largest score only where that is this much larger: waiting for the largest score of
// each tile takes longer than computing all its weights.
inline constexpr float kMostAboveReference = 16;

// Whether a score, less the reference, is too large. The answer for NaN does not matter.
#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_INLINE bool IsAbove(VF scores) {
  return _mm512_cmp_ps_mask(scores.raw, hn::Set(DF(), kMostAboveReference).raw, _CMP_NLE_UQ) != 0;
}
#else
HWY_INLINE bool IsAbove(VF scores) {
  return !hn::AllTrue(DF(), hn::Le(scores, hn::Set(DF(), kMostAboveReference)));
}
HWY_INLINE VF WeightExp2(VF x) { return Exp2(x); }
#endif
// Returns the larger of both, x where it is NaN.
HWY_INLINE VF Raised(VF x, float lowest) {
  const VF least = hn::Set(DF(), lowest);
#if PREFIXD_KERNELS_HAVE_SDOT
  return VF(vmaxq_f32(least.raw, x.raw));
#else
  return hn::Max(least, x);  // the second one where one is NaN
#endif
}
// 2^x for x below 100: relative error below 4e-6, never below 2^-120; NaN stays NaN. Takes the
// units that multiply for products only: reduce and scalef take them twice as long on Zen 4.
HWY_INLINE VF BoundedExp2(VF x) {
  const DF df;
  x = Raised(x, -120.0f);
  // A sum of this size has no bits for a fraction: its low bits are round(x) + 127, which is also
  // the exponent field of a power of 2.
  const VF magic = hn::Set(df, 0x1.8p23f + 127);
  const VF shifted = hn::Add(x, magic);
  const VF f = hn::Sub(x, hn::Sub(shifted, magic));
  VF power = hn::MulAdd(hn::Set(df, 9.57010179e-3f), f, hn::Set(df, 5.59178603e-2f));
  power = hn::MulAdd(power, f, hn::Set(df, 2.40247448e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 6.93121815e-1f));
  power = hn::MulAdd(power, f, hn::Set(df, 9.99999261e-1f));
  return hn::Mul(power, hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(DI(), shifted))));
}

HWY_INLINE void Scale(float* values, size_t count, VF factor) {
  for (size_t i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(DF(), values + i), factor), DF(), values + i);
  }
}
// Makes the largest of `scores` the reference and corrects all sums but those of values. Returns
// the factor for these.
HWY_NOINLINE HWY_ATTR VF RaiseReference(const DecodeJob& job, size_t row_head, VF scores) {
  const DF df;
  const DecodeSums& sums = job.sums;
  float& reference = sums.references[row_head];
  const VF before = hn::Set(df, reference);
  const VF max = hn::Max(hn::MaxOfLanes(df, scores), before);
  const VF correction = WeightExp2(hn::Sub(before, max));
  reference = hn::GetLane(max);
  const size_t offsets = size_t{job.offset_groups} * kLanes;
  Scale(sums.weights + row_head * kLanes, kLanes, correction);
  Scale(sums.offsets + row_head * offsets, offsets, correction);
  return correction;
}
HWY_NOINLINE HWY_ATTR void CorrectValues(const DecodeJob& job, size_t row_head, VF correction) {
  Scale(job.sums.values + row_head * job.value_pitch, job.value_pitch, correction);
}

#if PREFIXD_KERNELS_HAVE_PAIRS

// Adds a row head's weights of a tile up.
HWY_INLINE void AddWeights(const DecodeSums& sums, size_t row_head, const TileRow64& row) {
  float* const weights = sums.weights + row_head * kLanes;
  hn::StoreU(hn::Add(hn::LoadU(DF(), weights), row.SumAcross()), DF(), weights);
}

// Turns scores into weights, 0 for tokens that the row head does not see, and adds them up. `cap`
// is in powers of 2, 0 for none.
HWY_INLINE void WeighRowHead(const DecodeJob& job, size_t row_head, SeenTokens seen, float cap,
                             float* scores) {
  TileRow64 row = TileRow64::Load(scores);
  if (cap != 0) row = row.Capped(cap);
  if (!seen.all()) {
    const VF lowest = hn::Set(DF(), -FLT_MAX);
    row = {seen.Choose(0, row.v0, lowest), seen.Choose(1, row.v1, lowest),
           seen.Choose(2, row.v2, lowest), seen.Choose(3, row.v3, lowest)};
  }
  TileRow64 less = row.Less(job.sums.references[row_head]);
  if (HWY_UNLIKELY(IsAbove(less.MaxAcross()))) {
    CorrectValues(job, row_head, RaiseReference(job, row_head, row.MaxAcross()));
    less = row.Less(job.sums.references[row_head]);
  }
  row = {BoundedExp2(less.v0), BoundedExp2(less.v1), BoundedExp2(less.v2), BoundedExp2(less.v3)};
  if (!seen.all()) {
    row = {seen.Keep(0, row.v0), seen.Keep(1, row.v1), seen.Keep(2, row.v2), seen.Keep(3, row.v3)};
  }
  row.Store(scores);
  AddWeights(job.sums, row_head, row);
}

#else

inline constexpr size_t kTileVectors = kDecodeTile / kLanes;
// The same, one vector after the other. A token that the row head does not see has a weight of at
// most 2^-120, or of 1 as long as the row head has seen none: such weights are multiplied by almost
// nothing when it sees one, and no value is added by them.
HWY_INLINE void WeighRowHead(const DecodeJob& job, size_t row_head, SeenTokens seen, float cap,
                             float* scores) {
  const DF df;
  VF most = hn::Set(df, -FLT_MAX);
  if (cap == 0 && seen.all()) {
#pragma GCC unroll 16
    for (size_t v = 0; v < kTileVectors; ++v) {
      most = hn::Max(most, hn::LoadU(df, scores + v * kLanes));
    }
  } else {
    for (size_t v = 0; v < kTileVectors; ++v) {
      VF score = hn::LoadU(df, scores + v * kLanes);
      if (cap != 0) score = hn::Mul(Tanh(score), hn::Set(df, cap));
      score = seen.Choose(v, score, hn::Set(df, -FLT_MAX));
      most = hn::Max(most, score);
      hn::StoreU(score, df, scores + v * kLanes);
    }
  }
  if (HWY_UNLIKELY(IsAbove(hn::Sub(most, hn::Set(df, job.sums.references[row_head]))))) {
    CorrectValues(job, row_head, RaiseReference(job, row_head, most));
  }
  const VF reference = hn::Set(df, job.sums.references[row_head]);
  float* const weights = job.sums.weights + row_head * kLanes;
  VF sum = hn::LoadU(df, weights);
#pragma GCC unroll 4
  for (size_t v = 0; v < kTileVectors; ++v) {
    const VF weight = BoundedExp2(hn::Sub(hn::LoadU(df, scores + v * kLanes), reference));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, df, scores + v * kLanes);
  }
  hn::StoreU(sum, df, weights);
}

#endif

// Turns scratch.scores into weights.
HWY_NOINLINE HWY_ATTR void WeighStrip(const DecodeJob& job, const DecodeScratch& scratch,
                                      LineAsker* asker, const DecodeStrip& strip) {
  for (uint32_t r = 0; r < strip.rows; ++r) {
    asker->Ask<kLinesToWeigh>();
    WeighRowHead(job, strip.first + r, SeenTokens(strip.seen[r]), job.shape.soft_cap * kLog2E,
                 scratch.scores + r * kDecodeTile);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
