// Fast decode attention of some rows over one kv head of one block, for one SIMD target: included
// once per target.
#if defined(PREFIXD_KERNELS_DECODE_UNIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_UNIT_INL_H_
#undef PREFIXD_KERNELS_DECODE_UNIT_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_UNIT_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/convert/unit_step.h"
#include "kernels/convert/unit_tiles-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/keys-inl.h"
#include "kernels/decode/raw-inl.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/tile-inl.h"
#include "kernels/decode/values-inl.h"

#if PREFIXD_KERNELS_HAVE_DECODE
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

struct UnitPlace {
  const std::byte* key = nullptr;
  const std::byte* value = nullptr;
};

// One kv head of one block, and the rows that attend to it.
struct DecodeVisit {
  uint32_t slot = 0;
  uint32_t kv_head = 0;
  uint32_t first_row = 0, end_row = 0;
  uint64_t position = 0;  // of the block's first token
  uint32_t tokens = 0;
  uint32_t format = 0;
  DecodeUnit key, value;
  // Units of the same layouts that are read later; null if none is to be asked for. The next unit's
  // keys are brought into the L1 cache after this unit's values.
  const std::byte* near_key = nullptr;
  UnitPlace far;
};

// Calls `call.template operator()<kind, digits>()`.
template <class Call>
HWY_INLINE void WithCodes(const DecodeTensor& tensor, uint32_t digits, const Call& call) {
  if (tensor.bits == 4) return call.template operator()<CodeKind::kNibbles, 1>();
#if PREFIXD_KERNELS_HAVE_PAIRS || PREFIXD_KERNELS_HAVE_SDOT
  if (digits == 1) {
    if (tensor.is_signed) return call.template operator()<CodeKind::kSignedBytes, 1>();
    return call.template operator()<CodeKind::kBytes, 1>();
  }
#else
  (void)digits;
#endif
  if (tensor.is_signed) return call.template operator()<CodeKind::kSignedBytes, 2>();
  call.template operator()<CodeKind::kBytes, 2>();
}
// Calls `call.template operator()<rows>()`.
template <class Call>
HWY_INLINE void WithRows(uint32_t rows, const Call& call) {
  if (rows == 1) return call.template operator()<1>();
  if (rows == 2) return call.template operator()<2>();
  if (rows == 3) return call.template operator()<3>();
  return call.template operator()<4>();
}

// A tile where it can be read in tiled order.
struct TiledTile {
  DecodeUnit unit;
  DecodeTokens tokens;  // of `unit`
};
// Returns the unit's tile, brought into tiled order in `memory` if the unit is in rows.
HWY_INLINE TiledTile Tiled(const DecodeTensor& tensor, const DecodeUnit& unit,
                           const DecodeTokens& tile, std::byte* memory) {
  if (!tensor.in_rows) return {unit, tile};
  for (uint32_t done = 0; done < tile.tokens; done += kUnitStepTokens) {
    const uint32_t count = HWY_MIN(kUnitStepTokens, tile.tokens - done);
    const UnitStep from{.shape = {.format = *tensor.format, .dim = tensor.dim},
                        .layout = unit.layout,
                        .first = tile.first + done,
                        .count = count};
    const UnitStep to{
        .shape = tensor.tile, .layout = tensor.tile_layout, .first = done, .count = count};
    StoreTilesOfRows(to, RowsInUnit(from, unit.bytes), memory);
  }
  return {{memory, tensor.tile_layout}, {.first = 0, .tokens = tile.tokens}};
}

class UnitAttention {
 public:
  HWY_INLINE UnitAttention(const DecodeJob& job, const DecodeVisit& visit,
                           const DecodeScratch& scratch)
      : job_(job),
        visit_(visit),
        scratch_(scratch),
        format_(job.tensors[visit.format]),
        asker_(AskerOf(visit)) {}

  HWY_ATTR void Run() {
    for (uint32_t first = 0; first < visit_.tokens; first += kDecodeTile) {
      DecodeTokens tile{.first = first, .tokens = HWY_MIN(kDecodeTile, visit_.tokens - first)};
      tile.tokens = EndOfSeen(tile);
      if (tile.tokens == 0) continue;
      asker_.Ask<kLinesToWiden>();
      key_ = Tiled(format_.key, visit_.key, tile, scratch_.key_tile);
      WidenTile(format_.key, key_.unit, key_.tokens, scratch_.key_scales, scratch_.key_biases);
      value_ = Tiled(format_.value, visit_.value, tile, scratch_.value_tile);
      const uint32_t row_heads = (visit_.end_row - visit_.first_row) * job_.group();
      for (uint32_t strip = 0; strip < row_heads; strip += kStripHeads) {
        AttendStrip(tile, strip, HWY_MIN(kStripHeads, row_heads - strip));
      }
    }
    asker_.AskAll();
  }

 private:
  static HWY_INLINE LineAsker AskerOf(const DecodeVisit& visit) {
    const size_t key_bytes = visit.key.layout.unit_bytes;
    const size_t value_bytes = visit.value.layout.unit_bytes;
    const LinesAhead<3> no_near(visit.key.bytes);
    const LinesAhead<2> no_far(visit.key.bytes);
    return {visit.near_key == nullptr
                ? no_near
                : LinesAhead<3>(visit.value.bytes, value_bytes, visit.near_key, key_bytes),
            visit.far.key == nullptr
                ? no_far
                : LinesAhead<2>(visit.far.key, key_bytes, visit.far.value, value_bytes)};
  }

  // Returns the end of the tile's tokens that any row sees; 0 if no row sees any.
  HWY_INLINE uint32_t EndOfSeen(const DecodeTokens& tile) const {
    uint64_t seen = 0;
    for (uint32_t row = visit_.first_row; row < visit_.end_row; ++row) seen |= SeenBy(row, tile);
    return static_cast<uint32_t>(std::bit_width(seen));
  }
  HWY_INLINE uint64_t SeenBy(uint32_t row, const DecodeTokens& tile) const {
    return SeenTokensOf(job_.shape, job_.rows[row].position, visit_.position + tile.first,
                        tile.tokens);
  }

  // Attends the visit's row heads [first, first + rows) to a tile.
  HWY_INLINE void AttendStrip(const DecodeTokens& tile, uint32_t first, uint32_t rows) {
    const size_t row_head =
        (size_t{visit_.kv_head} * job_.rows.size() + visit_.first_row) * job_.group() + first;
    DecodeStrip strip;
    strip.rows = rows;
    strip.first = size_t{visit_.slot} * job_.row_heads() + row_head;
    uint32_t row = visit_.first_row + first / job_.group();
    uint32_t next_row = job_.group() - first % job_.group();  // where it begins in the strip
    uint64_t seen = SeenBy(row, tile);
    for (uint32_t r = 0; r < rows; ++r) {
      if (r == next_row) {
        seen = SeenBy(++row, tile);
        next_row += job_.group();
      }
      strip.seen[r] = seen;
    }
    Score(key_.unit, key_.tokens, row_head, rows);
    if (first == 0) WidenValues();  // here, while the scores are still on their way
    WeighStrip(job_, scratch_, &asker_, strip);
    AddValues(value_.unit, value_.tokens, strip);
  }

  HWY_INLINE void WidenValues() {
    asker_.Ask<kLinesToWiden>();
    WidenTile(format_.value, value_.unit, value_.tokens, scratch_.value_scales,
              scratch_.value_biases);
  }

  HWY_INLINE void Score(const DecodeUnit& unit, const DecodeTokens& tile, size_t row_head,
                        uint32_t rows) {
    const DecodeQueries& all = job_.queries[visit_.format];
    const DecodeTensor& key = format_.key;
    if (key.raw) {
      return WithDtype(key.format->dtype, [&](auto strip) HWY_ATTR {
        strip.Score(key, all.floats + row_head * key.dim, rows, unit, tile, &asker_, scratch_);
      });
    }
    const size_t code_bytes = key.dim * FactorBytes(DigitsOf(key, format_.digits));
    const StripQueries queries{.codes = all.codes + row_head * code_bytes,
                               .digit_pitch = job_.row_heads() * code_bytes,
                               .terms = all.terms + row_head * key.groups};
    WithCodes(key, format_.digits, [&]<CodeKind kKind, uint32_t kDigits>() HWY_ATTR {
      WithRows(rows, [&]<size_t kRows>() HWY_ATTR {
        ScoreTile<kKind, kDigits, kRows>(key, queries, unit, tile, &asker_, scratch_);
      });
    });
  }

  HWY_INLINE void AddValues(const DecodeUnit& unit, const DecodeTokens& tile,
                            const DecodeStrip& strip) {
    if (format_.value.raw) {
      return WithDtype(format_.value.format->dtype, [&](auto raw) HWY_ATTR {
        raw.Add(job_, format_.value, unit, tile, &asker_, strip, scratch_);
      });
    }
    WithCodes(format_.value, format_.digits, [&]<CodeKind kKind, uint32_t kDigits>() HWY_ATTR {
      WithRows(strip.rows, [&]<size_t kRows>() HWY_ATTR {
        AddTile<kKind, kDigits, kRows>(job_, format_.value, unit, tile, &asker_, strip, scratch_);
      });
    });
  }

  const DecodeJob& job_;
  const DecodeVisit& visit_;
  const DecodeScratch& scratch_;
  const DecodeFormat& format_;
  LineAsker asker_;
  TiledTile key_, value_;  // the tile that is attended to
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
