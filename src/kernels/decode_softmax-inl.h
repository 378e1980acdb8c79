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

#include "kernels/decode_job.h"
#include "kernels/decode_tile-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/tile_row-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Row heads of one kv head that are computed together, over one tile.
struct DecodeStrip {
  uint32_t rows = 0;                // 1 ... kStripHeads
  size_t first = 0;                 // index of the first one in job.sums
  uint64_t seen[kStripHeads] = {};  // bit t: the row head sees token t of the tile
  float corrections[kStripHeads];   // what its earlier weights are to be multiplied by
};

// Token t of a tile is lane t % 16 of vector t / 16.
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

// scores -> weights 2^(score - max), 0 for tokens that the row head does not see. cap: in powers of
// 2, or 0.
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
  const VF before = hn::Set(df, sums.maxima[row_head]);
  const VF max = hn::Max(hn::MaxOfLanes(df, row.MaxAcross()), before);
  row = TileRow64{hn::Sub(row.v0, max), hn::Sub(row.v1, max), hn::Sub(row.v2, max),
                  hn::Sub(row.v3, max)}
            .Exp2();
  if (!seen.all()) {
    row = {seen.Keep(0, row.v0), seen.Keep(1, row.v1), seen.Keep(2, row.v2), seen.Keep(3, row.v3)};
  }
  row.Store(scores);
  // Exactly 1 where nothing changes: a tile that the row head does not see changes no bit.
  const VF correction =
      hn::IfThenElse(hn::Eq(before, max), hn::Set(df, 1), WeightExp2(hn::Sub(before, max)));
  float* const weights = sums.weights + row_head * kLanes;
  hn::StoreU(hn::MulAdd(hn::LoadU(df, weights), correction, row.SumAcross()), df, weights);
  sums.maxima[row_head] = hn::GetLane(max);
  return hn::GetLane(correction);
}

// scratch.scores become weights; the sums of weights are brought up to date, those of values not.
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
