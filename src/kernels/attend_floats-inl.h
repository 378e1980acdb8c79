// Attention of one slice in floats, from pages of any format: included once per target.
#if defined(PREFIXD_KERNELS_ATTEND_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_ATTEND_FLOATS_INL_H_
#undef PREFIXD_KERNELS_ATTEND_FLOATS_INL_H_
#else
#define PREFIXD_KERNELS_ATTEND_FLOATS_INL_H_
#endif

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/blocks-inl.h"
#include "kernels/gemm-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Lays tokens out as floats. Values are code * scale + bias in float, not rounded to the format's
// dtype on the way.
class FloatTile {
 public:
  HWY_INLINE FloatTile(const AttendJob& job, uint32_t kv_head, const AttendScratch& scratch)
      : job_(job), scratch_(scratch), blocks_(job, kv_head) {}

  // Positions `begin` ... `begin + count - 1`; calls go upwards.
  HWY_ATTR void Load(uint64_t begin, uint32_t count) {
    for (uint32_t slot = 0; slot < count; slot += kStepTokens) {
      const uint32_t step = HWY_MIN(kStepTokens, count - slot);
      LoadStep(begin + slot, step, scratch_.values + slot * scratch_.value_pitch);
      TransposeRows(scratch_.key_rows, scratch_.key_pitch, job_.shape.key_dim, scratch_.keys + slot,
                    kTileTokens);
    }
  }

 private:
  HWY_ATTR void LoadStep(uint64_t begin, uint32_t count, float* values) {
    for (uint32_t done = 0; done < count;) {
      const uint32_t run = blocks_.Take(begin + done, count - done);
      DequantizeRows<RoundToFloat>(blocks_.keys(), scratch_.rows,
                                   scratch_.key_rows + done * scratch_.key_pitch,
                                   scratch_.key_pitch);
      DequantizeRows<RoundToFloat>(blocks_.values(), scratch_.rows,
                                   values + done * scratch_.value_pitch, scratch_.value_pitch);
      done += run;
    }
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  BlockCursor blocks_;
};

// Query rows times heads of one slice against one loaded tile at a time.
class FloatAttention {
 public:
  HWY_INLINE FloatAttention(const AttendJob& job, const AttendSlice& slice,
                            const AttendScratch& scratch)
      : job_(job),
        scratch_(scratch),
        place_(job, slice),
        row_heads_(place_.row_heads()),
        tile_(job, slice.kv_head, scratch) {}

  HWY_ATTR void Run() {
    LoadQueries();
    const uint64_t end = place_.PositionOf(row_heads_ - 1) + 1;
    for (uint64_t begin = 0; begin < end; begin += kTileTokens) {
      tile_.Load(begin, place_.VisibleIn(begin, row_heads_ - 1));
      for (uint32_t first = 0; first < row_heads_; first += kMaxTileRows) {
        AttendStrip(begin, first, HWY_MIN(kMaxTileRows, row_heads_ - first));
      }
    }
    StoreOutput();
  }

 private:
  HWY_ATTR void LoadQueries() {
    constexpr float kLog2E = 1.44269504f;  // weights are powers of 2
    const AttentionShape& shape = job_.shape;
    const float scale = shape.scale * kLog2E;
    for (uint32_t i = 0; i < row_heads_; ++i) {
      const float* from = place_.QueryOf(i);
      float* to = scratch_.query + i * scratch_.key_pitch;
      for (uint32_t d = 0; d < shape.key_dim; ++d) to[d] = from[d] * scale;
      float* sums = scratch_.sums + i * scratch_.value_pitch;
      for (size_t d = 0; d < scratch_.value_pitch; ++d) sums[d] = 0;
      scratch_.states[i] = {-FLT_MAX, 0};
    }
  }

  HWY_ATTR void AttendStrip(uint64_t begin, uint32_t first, uint32_t rows) {
    // Positions grow with the row, so the last one sees most and the first one least.
    const uint32_t most = place_.VisibleIn(begin, first + rows - 1);
    const uint32_t least = place_.VisibleIn(begin, first);
    if (most == 0) return;
    Multiply<FloatElement>({.a = scratch_.query + first * scratch_.key_pitch,
                            .a_pitch = scratch_.key_pitch,
                            .b = scratch_.keys,
                            .b_pitch = kTileTokens,
                            .depth = job_.shape.key_dim,
                            .row_scale = nullptr,
                            .c = scratch_.scores,
                            .c_pitch = kTileTokens,
                            .columns = most},
                           rows);
    float corrections[kMaxTileRows];
    for (uint32_t r = 0; r < rows; ++r) {
      const uint32_t count = place_.VisibleIn(begin, first + r);
      corrections[r] = count == 0 ? 1.0f
                                  : SoftmaxTile(scratch_.scores + r * kTileTokens, count,
                                                &scratch_.states[first + r]);
    }
    AddValues(first, rows, 0, least, corrections);
    if (least == most) return;
    // The diagonal: a row never touches a value behind its position, not even with weight 0, which
    // NaN would survive.
    const float unchanged = 1.0f;
    for (uint32_t r = 0; r < rows; ++r) {
      const uint32_t count = place_.VisibleIn(begin, first + r);
      if (count > least) AddValues(first + r, 1, least, count, &unchanged, r);
    }
  }

  // sums = sums * corrections + weights of tokens [from, to) times their values.
  HWY_INLINE void AddValues(uint32_t first, uint32_t rows, uint32_t from, uint32_t to,
                            const float* corrections, uint32_t score_row = 0) {
    Multiply<FloatElement>({.a = scratch_.scores + score_row * kTileTokens + from,
                            .a_pitch = kTileTokens,
                            .b = scratch_.values + from * scratch_.value_pitch,
                            .b_pitch = scratch_.value_pitch,
                            .depth = to - from,
                            .row_scale = corrections,
                            .c = scratch_.sums + first * scratch_.value_pitch,
                            .c_pitch = scratch_.value_pitch,
                            .columns = job_.shape.value_dim},
                           rows);
  }

  HWY_ATTR void StoreOutput() {
    const AttentionShape& shape = job_.shape;
    for (uint32_t i = 0; i < row_heads_; ++i) {
      const float* sums = scratch_.sums + i * scratch_.value_pitch;
      float* to = place_.OutOf(i);
      for (uint32_t d = 0; d < shape.value_dim; ++d) to[d] = sums[d] / scratch_.states[i].sum;
    }
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  const SlicePlace place_;
  const uint32_t row_heads_;
  FloatTile tile_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
