#include "kernels/attend_slice.h"

#include <algorithm>
#include <cfloat>
#include <type_traits>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_slice.cc"
#include "hwy/foreach_target.h"  // before the -inl.h files: it includes this file once per target
#include "hwy/highway.h"

#include "kernels/gemm-inl.h"
#include "kernels/rows-inl.h"
#include "kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Walks the block table in position order for one kv head and lays tokens out for the products.
// Values are code * scale + bias in float, not rounded to the format's dtype on the way.
class TileLoader {
 public:
  HWY_INLINE TileLoader(const AttendJob& job, uint32_t kv_head, const AttendScratch& scratch)
      : job_(job), kv_head_(kv_head), scratch_(scratch) {}

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
    const RowScratch rows{scratch_.scales, scratch_.biases, scratch_.codes};
    for (uint32_t done = 0; done < count;) {
      SeekTo(begin + done);
      const uint32_t first = static_cast<uint32_t>(begin + done - block_begin_);
      const uint32_t run = HWY_MIN(count - done, entry_->tokens - first);
      keys_.first = values_.first = first;
      keys_.count = values_.count = run;
      DequantizeRows<RoundToFloat>(keys_, rows, scratch_.key_rows + done * scratch_.key_pitch,
                                   scratch_.key_pitch);
      DequantizeRows<RoundToFloat>(values_, rows, values + done * scratch_.value_pitch,
                                   scratch_.value_pitch);
      done += run;
    }
  }

  HWY_ATTR void SeekTo(uint64_t position) {
    const quant::BlockTableEntry* const before = entry_;
    if (entry_ == nullptr) entry_ = job_.blocks;
    while (position >= block_begin_ + entry_->tokens) {
      block_begin_ += entry_->tokens;
      ++entry_;
    }
    if (entry_ != before) EnterBlock();
  }

  HWY_ATTR void EnterBlock() {
    const quant::KvFormat& format = job_.formats[entry_->format];
    keys_ = RangeOf(format.key, job_.shape.key_dim);
    values_ = RangeOf(format.value, job_.shape.value_dim);
    const std::byte* const value_units =
        entry_->units + job_.shape.kv_heads * keys_.layout.unit_bytes;
    keys_.unit = entry_->units + kv_head_ * keys_.layout.unit_bytes;
    values_.unit = value_units + kv_head_ * values_.layout.unit_bytes;
  }

  HWY_ATTR RowRange RangeOf(const quant::TensorFormat& format, uint32_t dim) const {
    RowRange range;
    range.format = &format;
    range.layout = quant::LayoutOfUnit(format, dim, entry_->page_tokens);
    range.row = quant::BytesOfRow(format, dim);
    range.dim = dim;
    return range;
  }

  const AttendJob& job_;
  const uint32_t kv_head_;
  const AttendScratch& scratch_;
  const quant::BlockTableEntry* entry_ = nullptr;
  uint64_t block_begin_ = 0;  // position of the entry's first token
  RowRange keys_, values_;    // of the entry
};

// Query rows times heads of one slice against one loaded tile at a time.
class SliceAttention {
 public:
  HWY_INLINE SliceAttention(const AttendJob& job, const AttendSlice& slice,
                            const AttendScratch& scratch)
      : job_(job), slice_(slice), scratch_(scratch), row_heads_(slice.rows * job.group()) {}

  HWY_ATTR void Run() {
    LoadQueries();
    TileLoader tile(job_, slice_.kv_head, scratch_);
    const uint64_t end = PositionOf(row_heads_ - 1) + 1;
    for (uint64_t begin = 0; begin < end; begin += kTileTokens) {
      tile.Load(begin, VisibleIn(begin, row_heads_ - 1));
      for (uint32_t first = 0; first < row_heads_; first += kMaxTileRows) {
        AttendStrip(begin, first, HWY_MIN(kMaxTileRows, row_heads_ - first));
      }
    }
    StoreOutput();
  }

 private:
  HWY_INLINE uint64_t PositionOf(uint32_t row_head) const {
    return uint64_t{job_.shape.first_position} + slice_.first_row + row_head / job_.group();
  }

  // How many tokens of the tile at `begin` the row may see.
  HWY_INLINE uint32_t VisibleIn(uint64_t begin, uint32_t row_head) const {
    const uint64_t position = PositionOf(row_head);
    if (position < begin) return 0;
    return static_cast<uint32_t>(HWY_MIN(position + 1 - begin, uint64_t{kTileTokens}));
  }

  HWY_INLINE size_t ElementOf(uint32_t row_head, size_t row_stride, size_t head_stride) const {
    const size_t row = slice_.first_row + row_head / job_.group();
    const size_t head = slice_.kv_head * job_.group() + row_head % job_.group();
    return row * row_stride + head * head_stride;
  }

  HWY_ATTR void LoadQueries() {
    constexpr float kLog2E = 1.44269504f;  // weights are powers of 2
    const AttentionShape& shape = job_.shape;
    const float scale = shape.scale * kLog2E;
    for (uint32_t i = 0; i < row_heads_; ++i) {
      const float* from = job_.q + ElementOf(i, shape.query_row_stride, shape.query_head_stride);
      float* to = scratch_.query + i * scratch_.key_pitch;
      for (uint32_t d = 0; d < shape.key_dim; ++d) to[d] = from[d] * scale;
      float* sums = scratch_.sums + i * scratch_.value_pitch;
      for (size_t d = 0; d < scratch_.value_pitch; ++d) sums[d] = 0;
      scratch_.states[i] = {-FLT_MAX, 0};
    }
  }

  HWY_ATTR void AttendStrip(uint64_t begin, uint32_t first, uint32_t rows) {
    // Positions grow with the row, so the last one sees most and the first one least.
    const uint32_t most = VisibleIn(begin, first + rows - 1);
    const uint32_t least = VisibleIn(begin, first);
    if (most == 0) return;
    Multiply({.a = scratch_.query + first * scratch_.key_pitch,
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
      const uint32_t count = VisibleIn(begin, first + r);
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
      const uint32_t count = VisibleIn(begin, first + r);
      if (count > least) AddValues(first + r, 1, least, count, &unchanged, r);
    }
  }

  // sums = sums * corrections + weights of tokens [from, to) times their values.
  HWY_INLINE void AddValues(uint32_t first, uint32_t rows, uint32_t from, uint32_t to,
                            const float* corrections, uint32_t score_row = 0) {
    Multiply({.a = scratch_.scores + score_row * kTileTokens + from,
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
      float* to = job_.out + ElementOf(i, shape.out_row_stride, shape.out_head_stride);
      for (uint32_t d = 0; d < shape.value_dim; ++d) to[d] = sums[d] / scratch_.states[i].sum;
    }
  }

  const AttendJob& job_;
  const AttendSlice& slice_;
  const AttendScratch& scratch_;
  const uint32_t row_heads_;
};

HWY_ATTR void RunSliceOnTarget(const AttendJob& job, const AttendSlice& slice,
                               const AttendScratch& scratch) {
  SliceAttention(job, slice, scratch).Run();
}

const char* NameOfTarget() { return hwy::TargetName(HWY_TARGET); }

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace prefixd::kernels {
namespace {

HWY_EXPORT(RunSliceOnTarget);
HWY_EXPORT(NameOfTarget);

size_t RoundUp(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

AttendScratch::AttendScratch(const AttentionShape& shape, size_t row_heads, std::byte* memory)
    : key_pitch(RoundUp(shape.key_dim, 16)), value_pitch(RoundUp(shape.value_dim, 16)) {
  const auto take = [&](auto*& part, size_t count) {
    if (memory != nullptr)
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(memory + bytes);
    bytes += RoundUp(count * sizeof(*part), kAlignment);
  };
  const size_t widest = std::max(key_pitch, value_pitch);
  take(query, row_heads * key_pitch);
  take(sums, row_heads * value_pitch);
  take(states, row_heads);
  take(keys, key_pitch * kTileTokens);
  take(values, kTileTokens * value_pitch);
  take(key_rows, kStepTokens * key_pitch);
  take(scores, kMaxTileRows * kTileTokens);
  take(scales, kStepTokens * (widest / 32 + 1));
  take(biases, kStepTokens * (widest / 32 + 1));
  take(codes, widest);
}

size_t AttendScratch::Bytes(const AttentionShape& shape, size_t row_heads) {
  return AttendScratch(shape, row_heads, nullptr).bytes;
}

void RunSlice(const AttendJob& job, const AttendSlice& slice, const AttendScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(RunSliceOnTarget)(job, slice, scratch);
}

const char* AttentionTarget() { return HWY_DYNAMIC_DISPATCH(NameOfTarget)(); }

}  // namespace prefixd::kernels
#endif  // HWY_ONCE
