// Which rows and which stored tokens a slice is about, for one SIMD target: included once per
// target.
#if defined(PREFIXD_KERNELS_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_BLOCKS_INL_H_
#undef PREFIXD_KERNELS_BLOCKS_INL_H_
#else
#define PREFIXD_KERNELS_BLOCKS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/attend_slice.h"
#include "kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Where a slice's rows stand.
class SlicePlace {
 public:
  HWY_INLINE SlicePlace(const AttendJob& job, const AttendSlice& slice)
      : job_(job), slice_(slice), row_heads_(slice.rows * job.group()) {}

  HWY_INLINE uint32_t row_heads() const { return row_heads_; }
  HWY_INLINE uint64_t PositionOf(uint32_t row_head) const {
    return uint64_t{job_.shape.first_position} + slice_.first_row + row_head / job_.group();
  }
  // How many tokens of the tile at `begin` the row may see.
  HWY_INLINE uint32_t VisibleIn(uint64_t begin, uint32_t row_head) const {
    const uint64_t position = PositionOf(row_head);
    if (position < begin) return 0;
    return static_cast<uint32_t>(HWY_MIN(position + 1 - begin, uint64_t{kTileTokens}));
  }
  HWY_INLINE const float* QueryOf(uint32_t row_head) const {
    return job_.q + ElementOf(row_head, job_.shape.query_row_stride, job_.shape.query_head_stride);
  }
  HWY_INLINE float* OutOf(uint32_t row_head) const {
    return job_.out + ElementOf(row_head, job_.shape.out_row_stride, job_.shape.out_head_stride);
  }

 private:
  HWY_INLINE size_t ElementOf(uint32_t row_head, size_t row_stride, size_t head_stride) const {
    const size_t row = slice_.first_row + row_head / job_.group();
    const size_t head = slice_.kv_head * job_.group() + row_head % job_.group();
    return row * row_stride + head * head_stride;
  }

  const AttendJob& job_;
  const AttendSlice& slice_;
  const uint32_t row_heads_;
};

// Into the L2 cache: from memory to a register takes longer than a core can wait for many lines.
HWY_INLINE void PrefetchBytes(const std::byte* from, size_t count) {
  for (size_t i = 0; i < count; i += 64) __builtin_prefetch(from + i, /*rw=*/0, /*locality=*/2);
}
HWY_INLINE void Prefetch(const RowRange& rows) {
  const auto prefetch = [&](uint64_t offset, size_t row) HWY_ATTR {
    PrefetchBytes(rows.unit + offset + rows.first * row, rows.count * row);
  };
  prefetch(rows.layout.codes_offset, rows.row.codes);
  prefetch(rows.layout.scales_offset, rows.row.scales);
  prefetch(rows.layout.biases_offset, rows.row.biases);
}

// Walks the block table in position order for one kv head.
class BlockCursor {
 public:
  HWY_INLINE BlockCursor(const AttendJob& job, uint32_t kv_head) : job_(job), kv_head_(kv_head) {}

  // Points keys() and values() at `count` tokens from `position` on, or at as many as the block
  // has; returns how many. Positions go upwards.
  HWY_ATTR uint32_t Take(uint64_t position, uint32_t count) {
    SeekTo(position);
    const uint32_t first = static_cast<uint32_t>(position - block_begin_);
    const uint32_t run = HWY_MIN(count, entry_->tokens - first);
    keys_.first = values_.first = first;
    keys_.count = values_.count = run;
    return run;
  }
  HWY_INLINE const RowRange& keys() const { return keys_; }
  HWY_INLINE const RowRange& values() const { return values_; }

 private:
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
  const quant::BlockTableEntry* entry_ = nullptr;
  uint64_t block_begin_ = 0;  // position of the entry's first token
  RowRange keys_, values_;    // of the entry
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
