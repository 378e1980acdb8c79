// Attention of one slice in floats, from pages of any format: included once per target.
#if defined(PREFIXD_KERNELS_PREFILL_ATTEND_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_ATTEND_FLOATS_INL_H_
#undef PREFIXD_KERNELS_PREFILL_ATTEND_FLOATS_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_ATTEND_FLOATS_INL_H_
#endif

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/softmax-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/blocks-inl.h"
#include "kernels/prefill/float_tiled-inl.h"
#include "kernels/prefill/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Lays tokens out as floats: code * scale + bias in float, not rounded to the format's dtype.
class FloatTile {
 public:
  HWY_INLINE FloatTile(const AttendJob& job, uint32_t kv_head, const AttendScratch& scratch)
      : job_(job), scratch_(scratch), blocks_(job, kv_head) {}

  // Loads `tokens` of the tile at `begin`. Calls go upwards in position. Other tokens are garbage.
  HWY_ATTR void Load(uint64_t begin, TileTokens tokens) {
    for (uint32_t slot = 0; slot < kTileTokens; slot += kStepTokens) {
      const TileTokens step = tokens >> slot & FirstTokens(kStepTokens);
      if (step == 0) continue;
      laid_out_ = false;
      for (TokenRun run = RunFrom(step, 0); run.count != 0;
           run = RunFrom(step, run.first + run.count)) {
        LoadRun(begin, slot, run);
      }
      if (laid_out_) continue;
      TransposeRows(scratch_.key_rows, scratch_.key_pitch, job_.shape.key_dim, scratch_.keys + slot,
                    kTileTokens);
    }
  }

 private:
  HWY_ATTR void LoadRun(uint64_t begin, uint32_t slot, TokenRun run) {
    const uint32_t end = run.first + run.count;
    for (uint32_t t = run.first; t < end;) {
      const uint32_t taken = blocks_.Take(begin + slot + t, end - t);
      LoadKeys(slot, t);
      LoadValues(scratch_.values + (slot + t) * scratch_.value_pitch);
      t += taken;
    }
  }

  HWY_INLINE void LoadKeys(uint32_t slot, uint32_t token) {
    const RowRange& rows = blocks_.keys();
    const size_t pitch = scratch_.key_pitch;
    float* const to = scratch_.key_rows + token * pitch;
    if (rows.format->layout != quant::Layout::kTiled) {
      DequantizeRows<RoundToFloat>(rows, scratch_.rows, to, pitch);
    } else if (WholeStep(rows)) {
      TiledKeySteps(rows, scratch_.keys + slot, kTileTokens);
      laid_out_ = true;
    } else {
      TiledElements(rows, PlacesOf(rows, quant::Side::kKey),
                    [&](size_t t, size_t c) { return to + t * pitch + c; });
    }
  }
  HWY_INLINE void LoadValues(float* to) {
    const RowRange& rows = blocks_.values();
    const size_t pitch = scratch_.value_pitch;
    if (rows.format->layout != quant::Layout::kTiled) {
      DequantizeRows<RoundToFloat>(rows, scratch_.rows, to, pitch);
    } else if (WholeStep(rows)) {
      TiledValueSteps(rows, to, pitch);
    } else {
      TiledElements(rows, PlacesOf(rows, quant::Side::kValue),
                    [&](size_t t, size_t c) { return to + t * pitch + c; });
    }
  }
  quant::TiledPlaces PlacesOf(const RowRange& rows, quant::Side side) const {
    return quant::TiledPlaces({.format = *rows.format,
                               .side = side,
                               .dim = rows.dim,
                               .page_tokens = blocks_.page_tokens()});
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  BlockCursor blocks_;
  bool laid_out_ = false;  // the step's keys are in columns already
};

// Attends all query rows times heads of one slice to one loaded tile at a time.
class FloatAttention {
 public:
  HWY_INLINE FloatAttention(const AttendJob& job, const AttendSlice& slice,
                            const AttendScratch& scratch, TokenKind kind)
      : job_(job),
        scratch_(scratch),
        after_codes_(kind == TokenKind::kRaw),
        place_(job, slice),
        kinds_(job, kind),
        row_heads_(place_.row_heads()),
        tile_(job, slice.kv_head, scratch) {}

  HWY_ATTR void Run() {
    LoadQueries();
    const uint64_t end = place_.PositionOf(row_heads_ - 1) + 1;
    for (uint64_t begin = place_.FirstTile(); begin < end; begin = place_.TileAfter(begin)) {
      const TileTokens tokens = kinds_.Of(begin, place_.NeededIn(begin));
      if (tokens == 0) continue;
      tile_.Load(begin, tokens);
      for (uint32_t first = 0; first < row_heads_; first += kMaxTileRows) {
        AttendStrip(begin, tokens, first, HWY_MIN(kMaxTileRows, row_heads_ - first));
      }
    }
    StoreOutput();
  }

 private:
  HWY_ATTR void LoadQueries() {
    constexpr float kLog2E = 1.44269504f;  // weights are powers of 2
    const AttentionShape& shape = job_.shape;
    const float scale = shape.soft_cap == 0 ? shape.scale * kLog2E : shape.scale / shape.soft_cap;
    for (uint32_t i = 0; i < row_heads_; ++i) {
      const float* from = place_.QueryOf(i);
      float* to = scratch_.query + i * scratch_.key_pitch;
      for (uint32_t d = 0; d < shape.key_dim; ++d) to[d] = from[d] * scale;
      float* sums = scratch_.sums + i * scratch_.value_pitch;
      for (size_t d = 0; d < scratch_.value_pitch; ++d) sums[d] = 0;
      scratch_.states[i] = {-FLT_MAX, 0};
      if (!after_codes_) scratch_.states[i] = {place_.FirstMaximum(i), place_.FirstWeight(i)};
    }
  }

  HWY_ATTR void AttendStrip(uint64_t begin, TileTokens tokens, uint32_t first, uint32_t rows) {
    TileTokens seen[kMaxTileRows];
    TileTokens any = 0;
    for (uint32_t r = 0; r < rows; ++r) {
      any |= seen[r] = place_.SeenIn(begin, first + r) & tokens;
    }
    if (any == 0) return;
    Multiply<FloatElement>({.a = scratch_.query + first * scratch_.key_pitch,
                            .a_pitch = scratch_.key_pitch,
                            .b = scratch_.keys,
                            .b_pitch = kTileTokens,
                            .depth = job_.shape.key_dim,
                            .row_scale = nullptr,
                            .c = scratch_.scores,
                            .c_pitch = kTileTokens,
                            .columns = static_cast<size_t>(std::bit_width(any))},
                           rows);
    if (job_.shape.soft_cap != 0) CapScores(rows);
    float corrections[kMaxTileRows];
    for (uint32_t r = 0; r < rows; ++r) {
      corrections[r] = seen[r] == 0 ? 1.0f
                                    : SoftmaxTile(scratch_.scores + r * kTileTokens, seen[r],
                                                  &scratch_.states[first + r]);
    }
    AddSeenValues({first, rows}, seen, corrections);
  }

  HWY_INLINE void CapScores(uint32_t rows) {
    constexpr float kLog2E = 1.44269504f;
    const DF df;
    const VF cap = hn::Set(df, job_.shape.soft_cap * kLog2E);
    for (size_t i = 0; i < rows * kTileTokens; i += hn::Lanes(df)) {
      hn::StoreU(hn::Mul(Tanh(hn::LoadU(df, scratch_.scores + i)), cap), df, scratch_.scores + i);
    }
  }

  struct Strip {
    uint32_t first = 0;
    uint32_t rows = 0;
  };
  // A row never touches a value that it does not see: NaN would survive even weight 0. Runs of
  // tokens that all rows see are added for all rows at once, others row by row.
  HWY_INLINE void AddSeenValues(const Strip& strip, const TileTokens* seen,
                                const float* corrections) {
    TileTokens common = kAllTokens, borders = 1;
    for (uint32_t r = 0; r < strip.rows; ++r) {
      common &= seen[r];
      borders |= seen[r] ^ seen[r] << 1;
    }
    if ((common & 1) == 0) AddValues(strip, {0, 0}, corrections);
    for (TileTokens left = borders; left != 0; left &= left - 1) {
      const auto first = static_cast<uint32_t>(std::countr_zero(left));
      const TileTokens later = left & (left - 1);
      const uint32_t end =
          later == 0 ? kTileTokens : static_cast<uint32_t>(std::countr_zero(later));
      const TokenRun run{first, end - first};
      if ((common >> first & 1) != 0) {
        AddValues(strip, run, first == 0 ? corrections : kUnchanged);
      } else {
        for (uint32_t r = 0; r < strip.rows; ++r) {
          if ((seen[r] >> first & 1) != 0) AddValues({strip.first + r, 1}, run, kUnchanged, r);
        }
      }
    }
  }

  static constexpr float kUnchanged[kMaxTileRows] = {1, 1, 1, 1, 1, 1};
  // sums = sums * corrections + the tokens' weights times their values.
  HWY_INLINE void AddValues(const Strip& strip, TokenRun tokens, const float* corrections,
                            uint32_t score_row = 0) {
    Multiply<FloatElement>({.a = scratch_.scores + score_row * kTileTokens + tokens.first,
                            .a_pitch = kTileTokens,
                            .b = scratch_.values + tokens.first * scratch_.value_pitch,
                            .b_pitch = scratch_.value_pitch,
                            .depth = tokens.count,
                            .row_scale = corrections,
                            .c = scratch_.sums + strip.first * scratch_.value_pitch,
                            .c_pitch = scratch_.value_pitch,
                            .columns = job_.shape.value_dim},
                           strip.rows);
  }

  HWY_ATTR void StoreOutput() {
    const AttentionShape& shape = job_.shape;
    for (uint32_t i = 0; i < row_heads_; ++i) {
      const float* sums = scratch_.sums + i * scratch_.value_pitch;
      float* to = place_.OutOf(i);
      if (after_codes_) {
        Merge(i, to);
        continue;
      }
      for (uint32_t d = 0; d < shape.value_dim; ++d) to[d] = sums[d] / scratch_.states[i].sum;
    }
  }

  // Merges the row's sums into `to`, its result of tokens stored as codes and of a learned sink.
  HWY_ATTR void Merge(uint32_t row, float* to) {
    const RowState& state = scratch_.states[row];
    if (state.sum == 0) return;
    const float maximum = scratch_.code.maxima[row];
    const float codes = scratch_.code.totals[row];
    const float most = codes == 0 ? state.max : HWY_MAX(maximum, state.max);
    const float codes_weight = codes == 0 ? 0 : codes * std::exp2(maximum - most);
    const float own_scale = std::exp2(state.max - most);
    const float total = codes_weight + state.sum * own_scale;
    const float* sums = scratch_.sums + row * scratch_.value_pitch;
    for (uint32_t d = 0; d < job_.shape.value_dim; ++d) {
      const float earlier = codes == 0 ? 0 : to[d] * codes_weight;
      to[d] = (earlier + sums[d] * own_scale) / total;
    }
  }

  const AttendJob& job_;
  const AttendScratch& scratch_;
  const bool after_codes_;
  const SlicePlace place_;
  KindMap kinds_;
  const uint32_t row_heads_;
  FloatTile tile_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard that flips with the target
