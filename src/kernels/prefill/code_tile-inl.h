// Loads stored codes as a tile that is multiplied, for one SIMD target: included once per target.
#if defined(PREFIXD_KERNELS_PREFILL_CODE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_PREFILL_CODE_TILE_INL_H_
#undef PREFIXD_KERNELS_PREFILL_CODE_TILE_INL_H_
#else
#define PREFIXD_KERNELS_PREFILL_CODE_TILE_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/common/softmax-inl.h"
#include "kernels/prefill/attend_slice.h"
#include "kernels/prefill/blocks-inl.h"
#include "kernels/prefill/code_factors-inl.h"
#include "kernels/prefill/code_rows-inl.h"

#if PREFIXD_KERNELS_HAVE_PAIRS
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Some tokens of a tile.
struct TilePart {
  uint64_t begin = 0;  // of the tile
  TileTokens tokens = 0;
};

// Keys or values of a tile: the words that are multiplied, and each token's scales and biases. A
// whole tile of a tiled unit is used in place if it can be multiplied as stored, else unpacked by
// vectors. Rows, and tokens whose slots do not line up with the tile, are laid out by steps.
// Key biases are those of byte 0. Value biases are those of byte 128, the middle: weights are
// rounded, and what they are multiplied with should be small.
// Signed values are bytes less 128. Bytes of a token with a negative scale are counted from the
// other end: all scales are then positive, and weights need no sign.
template <bool kValue, class Digits>
class CodeSide {
  static constexpr bool kSigned = kValue && Digits::kSignedValues;
  using VU = hn::Vec<DU>;

 public:
  // keeps_nibbles: nibbles of a tiled unit are left as stored.
  HWY_INLINE CodeSide(const AttendJob& job, uint32_t kv_head, const AttendScratch& scratch,
                      bool keeps_nibbles)
      : scratch_(scratch),
        blocks_(job, kv_head),
        keeps_nibbles_(keeps_nibbles),
        dim_(kValue ? job.shape.value_dim : job.shape.key_dim),
        group_(kValue ? job.value_group : job.key_group),
        scales_(kValue ? scratch.code.value_scales : scratch.code.key_scales),
        biases_(kValue ? scratch.code.value_biases : scratch.code.key_biases),
        laid_(kValue ? scratch.code.values : scratch.code.keys) {}

  // Loads `part`. Calls go upwards in position. Other tokens' data are garbage.
  HWY_INLINE void Load(const TilePart& part, Prefetcher* prefetcher) {
    prefetcher_ = prefetcher;
    const uint32_t first = static_cast<uint32_t>(std::countr_zero(part.tokens));
    const uint32_t last = static_cast<uint32_t>(std::bit_width(part.tokens)) - 1;
    const uint32_t run = blocks_.Take(part.begin + first, last - first + 1);
    const RowRange& rows = range();
    if (rows.format->layout == quant::Layout::kTiled && run == last - first + 1 &&
        rows.first >= first && (rows.first - first) % KeyWords::kTokens == 0 &&
        rows.first - first + kTileTokens <= rows.layout.slots) {
      return LoadTiled(rows, rows.first - first);
    }
    LoadSteps(part);
  }

  // Valid after Load().
  HWY_INLINE const KeyWords& keys() const { return keys_; }
  HWY_INLINE const ValueWords& values() const { return values_; }

 private:
  HWY_INLINE const RowRange& range() const { return kValue ? blocks_.values() : blocks_.keys(); }

  // Loads a whole tile from slot `slot` on.
  HWY_INLINE void LoadTiled(const RowRange& rows, uint32_t slot) {
    LoadTiledParameters(rows, slot);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(rows.unit + rows.layout.codes_offset);
    if constexpr (kValue) {
      LoadTiledValues(rows, words, slot);
    } else {
      LoadTiledKeys(rows, words, slot);
    }
  }

  HWY_INLINE void LoadTiledParameters(const RowRange& rows, uint32_t slot) {
    switch (rows.format->dtype) {
      case quant::Dtype::kF16:
        return LoadTiledParametersOf<quant::Dtype::kF16>(rows, slot);
      case quant::Dtype::kBf16:
        return LoadTiledParametersOf<quant::Dtype::kBf16>(rows, slot);
      default:
        return LoadTiledParametersOf<quant::Dtype::kF32>(rows, slot);
    }
  }
  template <quant::Dtype kDtype>
  HWY_INLINE void LoadTiledParametersOf(const RowRange& rows, uint32_t slot) {
    constexpr size_t kBytes = kDtype == quant::Dtype::kF32 ? 4 : 2;
    const GroupsOf groups(*rows.format, group_);
    const std::byte* scales = rows.unit + rows.layout.scales_offset + slot * kBytes;
    const std::byte* biases = rows.unit + rows.layout.biases_offset + slot * kBytes;
    const size_t pitch = rows.layout.slots * kBytes, stored = dim_ / rows.format->group_size;
    prefetcher_->Some();
    for (size_t g = 0; g < stored; ++g, scales += pitch, biases += pitch) {
      for (uint32_t t = 0; t < kTileTokens; t += kStepTokens) {
        const VF bias =
            groups.meaning.biased() ? LoadWidened<kDtype>(biases + t * kBytes) : hn::Zero(DF());
        StoreParameters(groups, {LoadWidened<kDtype>(scales + t * kBytes), bias}, g, t,
                        kStepTokens);
      }
    }
  }

  // The format's groups; each is `copies` groups of the job.
  struct GroupsOf {
    HWY_INLINE GroupsOf(const quant::TensorFormat& format, uint32_t job_group)
        : format(format), meaning(format), copies(format.group_size / job_group) {}
    const quant::TensorFormat& format;
    const ByteMeaning<kValue> meaning;
    const size_t copies;
  };
  // Converts the unit's parameters `stored` of the format's group `group` and stores them.
  HWY_INLINE void StoreParameters(const GroupsOf& groups, const GroupParameters& stored,
                                  size_t group, uint32_t slot, uint32_t count) {
    const DF df;
    const auto taken = hn::FirstN(df, count);
    GroupParameters p = groups.meaning.Of(stored);
    __m128i signs = _mm_setzero_si128();
    if constexpr (kSigned) signs = MakePositive(groups.format, &p);
    for (size_t copy = 0; copy < groups.copies; ++copy) {
      const size_t at = (group * groups.copies + copy) * kTileTokens + slot;
      if constexpr (kSigned) {
        _mm_mask_storeu_epi8(scratch_.code.value_signs + at, static_cast<__mmask16>(taken.raw),
                             signs);
      }
      if (count == kStepTokens) {
        hn::StoreU(p.scales, df, scales_ + at);
        hn::StoreU(p.biases, df, biases_ + at);
      } else {
        hn::BlendedStore(p.scales, taken, df, scales_ + at);
        hn::BlendedStore(p.biases, taken, df, biases_ + at);
      }
    }
  }

  // Makes scales positive and fits the biases. Returns the XOR masks that make bytes signed.
  static HWY_INLINE __m128i MakePositive(const quant::TensorFormat& format, GroupParameters* p) {
    const DF df;
    const int range = 0xff << RangeShift(format) & 0xff;  // byte ^ range counts from the other end
    const auto negative = hn::Lt(p->scales, hn::Zero(df));
    const VF moved = hn::Set(df, static_cast<float>(range - 256));
    p->biases = hn::IfThenElse(negative, hn::MulAdd(p->scales, moved, p->biases), p->biases);
    p->scales = hn::Abs(p->scales);
    return _mm_mask_blend_epi8(static_cast<__mmask16>(negative.raw),
                               _mm_set1_epi8(static_cast<char>(0x80)),
                               _mm_set1_epi8(static_cast<char>(0x80 ^ range)));
  }
  // Returns the XOR masks of four tokens from `slot` on, a word for each channel of a job's group.
  HWY_INLINE VU SignsAt(size_t group, size_t slot) const {
    uint32_t word;
    std::memcpy(&word, scratch_.code.value_signs + group * kTileTokens + slot, sizeof(word));
    return hn::Set(DU(), word);
  }

  HWY_INLINE void LoadTiledKeys(const RowRange& rows, const uint32_t* words, uint32_t slot) {
    const bool nibbles = rows.format->bits == 4;
    const VU signs = hn::Set(DU(), SignsOf(*rows.format));
    const bool as_stored = nibbles ? keeps_nibbles_ : SignsOf(*rows.format) == 0;
    const size_t tile_words = KeyWords::kTokens * dim_ / (nibbles ? 8 : 4);
    keys_.nibbles = nibbles && as_stored;
    for (size_t half = 0; half < 2; ++half) {
      const uint32_t* from = words + (slot / KeyWords::kTokens + half) * tile_words;
      if (as_stored) {
        keys_.half[half] = from;
        continue;
      }
      uint32_t* to = laid_ + half * KeyWords::kTokens * dim_ / 4;
      keys_.half[half] = to;
      prefetcher_->Some();
      if (nibbles) {
        for (size_t i = 0; i < tile_words; i += KeyWords::kTokens) {
          UnpackNibbles(from + i, to + 2 * i, KeyWords::kTokens, signs);
          UnpackNibbles(from + i + 16, to + 2 * i + 16, KeyWords::kTokens, signs);
        }
      } else {
        ChangeSigns(from, tile_words, to, signs);
      }
    }
  }

  HWY_INLINE void LoadTiledValues(const RowRange& rows, const uint32_t* words, uint32_t slot) {
    const quant::TensorFormat& format = *rows.format;
    const bool nibbles = format.bits == 4;
    const size_t group = format.group_size;
    const size_t quad_words = nibbles ? group / 2 : group;
    const size_t group_words = rows.layout.slots / 4 * quad_words;
    const bool as_stored = nibbles ? keeps_nibbles_ : SignsOf(format) == 0 && !kSigned;
    values_ = {.words = words + slot / 4 * quad_words,
               .quad_pitch = as_stored ? quad_words : group,
               .group_pitch = group_words,
               .groups_a_group = group / group_,
               .nibbles = nibbles && as_stored};
    if (as_stored) return;
    const uint32_t* const from = values_.words;
    const size_t laid_words = kTileTokens / 4 * group;
    const size_t piece = kSigned ? group : laid_words;  // four tokens have signs of their own
    for (size_t g = 0; g < dim_ / group; ++g) {
      prefetcher_->Some();
      const uint32_t* group_from = from + g * group_words;
      uint32_t* group_to = laid_ + g * laid_words;
      for (size_t done = 0; done < laid_words; done += piece) {
        VU signs = hn::Set(DU(), SignsOf(format));
        if constexpr (kSigned) {
          signs = hn::Xor(signs, SignsAt(g * values_.groups_a_group, done / group * 4));
        }
        if (nibbles) {
          for (size_t i = done; i < done + piece; i += 32) {
            UnpackNibbles(group_from + i / 2, group_to + i, 16, signs);
          }
        } else {
          ChangeSigns(group_from + done, piece, group_to + done, signs);
        }
      }
    }
    values_.words = laid_;
    values_.group_pitch = laid_words;
  }

  // Unpacks 16 words of nibbles to 16 words of low nibbles and, `apart` words later, 16 words of
  // high nibbles. Only signed values use `signs`.
  static HWY_INLINE void UnpackNibbles(const uint32_t* from, uint32_t* to, size_t apart, VU signs) {
    const DU du;
    const VU mask = hn::Set(du, 0xf0f0f0f0u), words = hn::LoadU(du, from);
    VU low = hn::And(hn::ShiftLeft<4>(words), mask), high = hn::And(words, mask);
    if constexpr (kSigned) {
      low = hn::Xor(low, signs);
      high = hn::Xor(high, signs);
    }
    hn::StoreU(low, du, to);
    hn::StoreU(high, du, to + apart);
  }
  static HWY_INLINE void ChangeSigns(const uint32_t* from, size_t count, uint32_t* to, VU signs) {
    const DU du;
    for (size_t i = 0; i < count; i += 16) {
      hn::StoreU(hn::Xor(hn::LoadU(du, from + i), signs), du, to + i);
    }
  }

  HWY_INLINE void LoadSteps(const TilePart& part) {
    for (uint32_t slot = 0; slot < kTileTokens; slot += kStepTokens) {
      const TileTokens step = part.tokens >> slot & FirstTokens(kStepTokens);
      for (TokenRun run = RunFrom(step, 0); run.count != 0;
           run = RunFrom(step, run.first + run.count)) {
        LoadRun(part.begin, slot, run);
      }
      if (step != 0) LayOut(slot);
      prefetcher_->Some();
    }
    for (size_t half = 0; half < 2; ++half) {
      keys_.half[half] = laid_ + half * KeyWords::kTokens * dim_ / 4;
    }
    keys_.nibbles = false;
    values_ = {.words = laid_, .quad_pitch = group_, .group_pitch = kTileTokens / 4 * group_};
  }

  HWY_INLINE void LoadRun(uint64_t begin, uint32_t slot, TokenRun run) {
    const uint32_t end = run.first + run.count;
    for (uint32_t t = run.first; t < end;) {
      const uint32_t taken = blocks_.Take(begin + slot + t, end - t);
      uint8_t* to = scratch_.code.rows + t * dim_;
      if (range().format->layout == quant::Layout::kTiled) {
        LoadTiledRows(range(), slot + t, to);
      } else {
        LoadRows(range(), slot + t, to);
      }
      t += taken;
    }
  }

  HWY_INLINE void LoadRows(const RowRange& rows, uint32_t slot, uint8_t* to) {
    if (rows.format->codec == quant::Codec::kMlxAffine) WidenParameters(rows, scratch_.rows);
    const GroupsOf groups(*rows.format, group_);
    for (size_t g = 0; g < dim_ / rows.format->group_size; ++g) {
      StoreParameters(groups, RowParameters(rows, scratch_.rows, g), g, slot, rows.count);
    }
    const std::byte* from =
        rows.unit + rows.layout.codes_offset + size_t{rows.first} * rows.row.codes;
    for (uint32_t t = 0; t < rows.count; ++t, from += rows.row.codes, to += dim_) {
      WidenRow(rows, from, scratch_.rows.codes, to);
    }
  }

  HWY_ATTR void LoadTiledRows(const RowRange& rows, uint32_t slot, uint8_t* to) {
    const quant::TensorFormat& format = *rows.format;
    const size_t bytes = quant::DtypeBytes(format.dtype);
    const GroupsOf groups(format, group_);
    for (size_t g = 0; g < dim_ / format.group_size; ++g) {
      alignas(64) float scales[kStepTokens] = {};
      alignas(64) float biases[kStepTokens] = {};
      const size_t at = (g * rows.layout.slots + rows.first) * bytes;
      Widen(format.dtype, rows.unit + rows.layout.scales_offset + at, rows.count, scales);
      if (HasBiases(format.codec)) {
        Widen(format.dtype, rows.unit + rows.layout.biases_offset + at, rows.count, biases);
      }
      StoreParameters(groups, {hn::Load(DF(), scales), hn::Load(DF(), biases)}, g, slot,
                      rows.count);
    }
    const quant::TiledPlaces places({.format = format,
                                     .side = kValue ? quant::Side::kValue : quant::Side::kKey,
                                     .dim = dim_,
                                     .page_tokens = blocks_.page_tokens()});
    for (uint32_t t = 0; t < rows.count; ++t, to += dim_) {
      WidenTiledRow(places, rows, rows.first + t, to);
    }
  }

  // Lays 16 rows of bytes out in the tile, as tokens `slot` ...
  HWY_INLINE void LayOut(uint32_t slot) {
    if constexpr (kValue) {
      LayValues(slot);
    } else {
      const size_t half = slot / KeyWords::kTokens;
      TransposeRows(reinterpret_cast<const uint32_t*>(scratch_.code.rows), dim_ / 4, dim_ / 4,
                    laid_ + half * KeyWords::kTokens * dim_ / 4 + slot % KeyWords::kTokens,
                    KeyWords::kTokens);
    }
  }
  HWY_INLINE void LayValues(uint32_t slot) {
    for (uint32_t t = 0; t < kStepTokens; t += 4) {
      const uint8_t* rows = scratch_.code.rows + t * dim_;
      for (size_t d = 0; d < dim_; d += 16) {
        const auto v0 = Widened(rows + d);
        const auto v1 = hn::ShiftLeft<8>(Widened(rows + dim_ + d));
        const auto v2 = hn::ShiftLeft<16>(Widened(rows + 2 * dim_ + d));
        const auto v3 = hn::ShiftLeft<24>(Widened(rows + 3 * dim_ + d));
        const size_t at = (d / group_ * (kTileTokens / 4) + (slot + t) / 4) * group_ + d % group_;
        auto word = hn::Or(hn::Or(v0, v1), hn::Or(v2, v3));
        if constexpr (kSigned) word = hn::Xor(word, SignsAt(d / group_, slot + t));
        hn::StoreU(word, DU(), laid_ + at);
      }
    }
  }
  static HWY_INLINE VU Widened(const uint8_t* from) {
    return hn::PromoteTo(DU(), hn::LoadU(DU8(), from));
  }

  const AttendScratch& scratch_;
  BlockCursor blocks_;
  const bool keeps_nibbles_;
  const uint32_t dim_;
  const uint32_t group_;  // the job's
  float* const scales_;
  float* const biases_;
  uint32_t* const laid_;
  Prefetcher* prefetcher_ = nullptr;
  KeyWords keys_;
  ValueWords values_;
};

template <class Digits>
class CodeTile {
 public:
  HWY_INLINE CodeTile(const AttendJob& job, uint32_t kv_head, const AttendScratch& scratch,
                      bool keeps_nibbles)
      : keys_(job, kv_head, scratch, keeps_nibbles),
        values_(job, kv_head, scratch, keeps_nibbles),
        ahead_(job, kv_head) {}

  // Loads `part`. Calls go upwards in position. Each Prefetch() asks for some lines of `next`.
  HWY_ATTR void Load(const TilePart& part, const TilePart& next) {
    PlanPrefetch(next);
    keys_.Load(part, &prefetcher_);
    values_.Load(part, &prefetcher_);
  }
  HWY_INLINE void Prefetch() { prefetcher_.Some(); }
  HWY_INLINE const KeyWords& keys() const { return keys_.keys(); }
  HWY_INLINE const ValueWords& values() const { return values_.values(); }

 private:
  HWY_INLINE void PlanPrefetch(const TilePart& part) {
    for (TokenRun run = RunFrom(part.tokens, 0); run.count != 0;
         run = RunFrom(part.tokens, run.first + run.count)) {
      for (uint32_t done = 0; done < run.count;) {
        done += ahead_.Take(part.begin + run.first + done, run.count - done);
        prefetcher_.Add(ahead_.values());
        prefetcher_.Add(ahead_.keys());  // asked for first
      }
    }
    prefetcher_.StartWork();
  }

  CodeSide<false, Digits> keys_;
  CodeSide<true, Digits> values_;
  BlockCursor ahead_;  // at what is prefetched
  Prefetcher prefetcher_;
};

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
