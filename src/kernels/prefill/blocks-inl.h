// The rows and the stored tokens of a slice, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_PREFILL_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_BLOCKS_INL_H_
#undef PREFIXD_KERNELS_PREFILL_BLOCKS_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_BLOCKS_INL_H_
#endif

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/prefill/attend_slice.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// A set of tokens of a tile: bit t is token t.
using TileTokens = uint64_t;
static_assert(kTileTokens == 64);
inline constexpr TileTokens kAllTokens = ~TileTokens{0};

HWY_INLINE TileTokens FirstTokens(uint64_t count) {
  return count == kTileTokens ? kAllTokens : (TileTokens{1} << count) - 1;
}
// Consecutive tokens of a tile; `count` is 0 if there are none.
struct TokenRun {
  uint32_t first = 0;
  uint32_t count = 0;
};
// Returns the first unbroken run of `tokens` at or after `from`.
HWY_INLINE TokenRun RunFrom(TileTokens tokens, uint32_t from) {
  if (from >= kTileTokens || tokens >> from == 0) return {kTileTokens, 0};
  const uint32_t first = from + static_cast<uint32_t>(std::countr_zero(tokens >> from));
  return {first, static_cast<uint32_t>(std::countr_one(tokens >> first))};
}

// Returns the tokens of the tile at `begin` that stand before `position`.
HWY_INLINE TileTokens TokensBelow(uint64_t begin, uint64_t position) {
  if (position <= begin) return 0;
  return FirstTokens(HWY_MIN(position - begin, uint64_t{kTileTokens}));
}

// Where a slice's rows stand, and what they see.
class SlicePlace {
 public:
  HWY_INLINE SlicePlace(const AttendJob& job, const AttendSlice& slice)
      : job_(job), slice_(slice), row_heads_(slice.rows * job.group()) {}

  HWY_INLINE uint32_t row_heads() const { return row_heads_; }
  HWY_INLINE uint64_t PositionOf(uint32_t row_head) const {
    return uint64_t{job_.shape.first_position} + slice_.first_row + row_head / job_.group();
  }
  // Returns the tokens of the tile at `begin` that the row sees.
  HWY_INLINE TileTokens SeenIn(uint64_t begin, uint32_t row_head) const {
    const uint64_t position = PositionOf(row_head);
    return SeenBetween(begin, position, position);
  }
  // Returns the tokens of the tile at `begin` that any row sees.
  HWY_INLINE TileTokens NeededIn(uint64_t begin) const {
    return SeenBetween(begin, PositionOf(0), PositionOf(row_heads_ - 1));
  }
  // Returns the begin of the first tile after `begin` of which any row may see a token. The caller
  // stops behind the last row's position.
  HWY_INLINE uint64_t TileAfter(uint64_t begin) const {
    const uint64_t next = begin + kTileTokens;
    if (next < job_.shape.sink_tokens) return next;
    return HWY_MAX(next, WindowBegin(PositionOf(0)) / kTileTokens * kTileTokens);
  }
  HWY_INLINE uint64_t FirstTile() const {
    return job_.shape.sink_tokens != 0 ? 0 : WindowBegin(PositionOf(0)) / kTileTokens * kTileTokens;
  }
  // Softmax state before any token: nothing seen, or the head's learned sink.
  HWY_INLINE float FirstMaximum(uint32_t row_head) const {
    constexpr float kLog2E = 1.44269504f;
    return HWY_MAX(SinkOf(row_head) * kLog2E, -FLT_MAX);
  }
  HWY_INLINE float FirstWeight(uint32_t row_head) const {
    return SinkOf(row_head) == -HUGE_VALF ? 0.0f : 1.0f;
  }
  HWY_INLINE const float* QueryOf(uint32_t row_head) const {
    return job_.q + ElementOf(row_head, job_.shape.query_row_stride, job_.shape.query_head_stride);
  }
  HWY_INLINE float* OutOf(uint32_t row_head) const {
    return job_.out + ElementOf(row_head, job_.shape.out_row_stride, job_.shape.out_head_stride);
  }

 private:
  HWY_INLINE size_t HeadOf(uint32_t row_head) const {
    return slice_.kv_head * job_.group() + row_head % job_.group();
  }
  HWY_INLINE float SinkOf(uint32_t row_head) const {
    return job_.shape.sink_logits == nullptr ? -HUGE_VALF
                                             : job_.shape.sink_logits[HeadOf(row_head)];
  }
  HWY_INLINE uint64_t WindowBegin(uint64_t position) const {
    const uint64_t window = job_.shape.window;
    return window == 0 || position < window ? 0 : position + 1 - window;
  }
  // Returns the tokens that any row at positions `first` ... `last` sees.
  HWY_INLINE TileTokens SeenBetween(uint64_t begin, uint64_t first, uint64_t last) const {
    const TileTokens window =
        TokensBelow(begin, last + 1) & ~TokensBelow(begin, WindowBegin(first));
    return window | (TokensBelow(begin, HWY_MIN(last + 1, uint64_t{job_.shape.sink_tokens})));
  }
  HWY_INLINE size_t ElementOf(uint32_t row_head, size_t row_stride, size_t head_stride) const {
    const size_t row = slice_.first_row + row_head / job_.group();
    return row * row_stride + HeadOf(row_head) * head_stride;
  }

  const AttendJob& job_;
  const AttendSlice& slice_;
  const uint32_t row_heads_;
};

// Finds the tokens that an arithmetic takes.
class KindMap {
 public:
  HWY_INLINE KindMap(const AttendJob& job, TokenKind kind)
      : job_(job), kind_(kind), entry_(job.blocks) {}

  // Returns which of `tokens` of the tile at `begin` it takes. `begin` grows from call to call.
  HWY_INLINE TileTokens Of(uint64_t begin, TileTokens tokens) {
    return kind_ == TokenKind::kAny || tokens == 0 ? tokens : tokens & Find(begin, tokens);
  }

 private:
  HWY_ATTR TileTokens Find(uint64_t begin, TileTokens tokens) {
    const uint64_t end = begin + static_cast<uint64_t>(std::bit_width(tokens));
    while (block_begin_ + entry_->tokens <= begin) block_begin_ += entry_++->tokens;
    TileTokens found = 0;
    uint64_t at = block_begin_;
    for (const quant::BlockTableEntry* entry = entry_; at < end; at += entry++->tokens) {
      if (HoldsFloats(job_.formats[entry->format]) != (kind_ == TokenKind::kRaw)) continue;
      found |= TokensBelow(begin, at + entry->tokens) & ~TokensBelow(begin, at);
    }
    return found;
  }

  const AttendJob& job_;
  const TokenKind kind_;
  const quant::BlockTableEntry* entry_;
  uint64_t block_begin_ = 0;  // position of the entry's first token
};

// Brings bytes that are needed soon into the L2 cache: from memory to a register takes longer than
// a core can wait for many lines. A core has room for few requests, so a few lines are asked for
// beside each piece of other work. Their number is such that all lines are asked for when the work
// is done, if the work has as many pieces as the work before.
class Prefetcher {
 public:
  HWY_INLINE void Add(const std::byte* from, size_t count) {
    if (spans_ == kMaxSpans) Ask(kMaxLines);
    if (spans_ == kMaxSpans) return;
    begins_[spans_] = from;
    ends_[spans_++] = from + count;
  }
  // The unit of a whole block is one span. Parts of a tiled unit stand by group, then slot.
  HWY_INLINE void Add(const RowRange& rows) {
    if (rows.first == 0 && rows.count == rows.layout.slots) {
      return Add(rows.unit, rows.layout.payload_bytes);
    }
    const bool tiled = rows.format->layout == quant::Layout::kTiled;
    const size_t groups = tiled ? rows.dim / rows.format->group_size : 1;
    const auto add = [&](uint64_t offset, size_t row) HWY_ATTR {
      const size_t slot_bytes = row / groups;
      for (size_t g = 0; slot_bytes != 0 && g < groups; ++g) {
        Add(rows.unit + offset + (g * rows.layout.slots + rows.first) * slot_bytes,
            rows.count * slot_bytes);
      }
    };
    add(rows.layout.codes_offset, rows.row.codes);
    add(rows.layout.scales_offset, rows.row.scales);
    add(rows.layout.biases_offset, rows.row.biases);
  }
  // Called after the last Add() and before the first piece of work.
  HWY_INLINE void StartWork() {
    size_t lines = 0;
    for (size_t i = 0; i < spans_; ++i) {
      lines += static_cast<size_t>(ends_[i] - begins_[i]) / kLineBytes + 1;
    }
    lines_a_piece_ = lines / HWY_MAX(pieces_, size_t{1}) + 1;
    pieces_ = 0;
  }
  // Called beside each piece of work.
  HWY_INLINE void Some() {
    ++pieces_;
    Ask(lines_a_piece_);
  }

 private:
  static constexpr size_t kMaxSpans = 32;
  static constexpr size_t kMaxLines = 64;
  static constexpr size_t kLineBytes = 64;

  HWY_INLINE void Ask(size_t lines) {
    while (spans_ != 0 && lines != 0) {
      const std::byte*& begin = begins_[spans_ - 1];
      const std::byte* const end = ends_[spans_ - 1];
      for (; begin < end && lines != 0; begin += kLineBytes, --lines) {
        __builtin_prefetch(begin, /*rw=*/0, /*locality=*/2);
      }
      if (begin >= end) --spans_;
    }
  }

  const std::byte* begins_[kMaxSpans];
  const std::byte* ends_[kMaxSpans];
  size_t spans_ = 0;
  size_t pieces_ = 0;  // pieces of work so far
  size_t lines_a_piece_ = 0;
};

// Walks the block table in position order for one kv head.
class BlockCursor {
 public:
  HWY_INLINE BlockCursor(const AttendJob& job, uint32_t kv_head) : job_(job), kv_head_(kv_head) {}

  // Points keys() and values() at `count` tokens from `position` on, or at as many as the block
  // has. Returns how many. Positions go upwards from call to call.
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
  // Token slots of the block that keys() and values() are in.
  HWY_INLINE uint32_t page_tokens() const { return slots_; }

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
    // A table has few kinds of blocks, and blocks of one kind follow each other.
    if (keys_.format == nullptr || format_ != entry_->format || slots_ != entry_->page_tokens) {
      format_ = entry_->format;
      slots_ = entry_->page_tokens;
      keys_ = RangeOf(job_.formats[format_].key, job_.shape.key_dim);
      values_ = RangeOf(job_.formats[format_].value, job_.shape.value_dim);
    }
    const std::byte* const value_units =
        entry_->units + job_.shape.kv_heads * keys_.layout.unit_bytes;
    keys_.unit = entry_->units + kv_head_ * keys_.layout.unit_bytes;
    values_.unit = value_units + kv_head_ * values_.layout.unit_bytes;
  }

  HWY_ATTR RowRange RangeOf(const quant::TensorFormat& format, uint32_t dim) const {
    RowRange range;
    range.format = &format;
    range.layout = quant::LayoutOfUnit(format, dim, entry_->page_tokens);
    range.row = quant::BytesOfStoredRow(format, dim);
    range.dim = dim;
    return range;
  }

  const AttendJob& job_;
  const uint32_t kv_head_;
  const quant::BlockTableEntry* entry_ = nullptr;
  uint64_t block_begin_ = 0;         // position of the entry's first token
  uint32_t format_ = 0, slots_ = 0;  // of the entry
  RowRange keys_, values_;           // the same
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
