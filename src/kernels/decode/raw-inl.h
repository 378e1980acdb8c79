// Scores and values of pages that hold plain numbers, for one SIMD target: included once per
// target.
//
// Computes in float. Four row heads share every loaded register. The dots of four tokens are added
// up across lanes together.
#if defined(PREFIXD_KERNELS_DECODE_RAW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_RAW_INL_H_
#undef PREFIXD_KERNELS_DECODE_RAW_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_RAW_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/ask-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/tile-inl.h"
#include "kernels/decode/values-inl.h"

#if PREFIXD_KERNELS_HAVE_DECODE
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Vectors whose sums stay in registers for each row head: AVX2 has half as many as the others.
inline constexpr uint32_t kDotTokens = kLanes == 8 ? 2 : 4;
inline constexpr size_t kRawVectors = kDotTokens;
inline constexpr size_t kRawDots = size_t{kStripHeads} * kDotTokens;

// Adds up the lanes of each of kRawDots vectors.
HWY_INLINE void SumRawDots(const float* lanes, float* dots) {
#if PREFIXD_KERNELS_HAVE_PAIRS
  hn::StoreU(SumOfRows(lanes), DF(), dots);
#else
  for (size_t i = 0; i < kRawDots; ++i) {
    dots[i] = hn::GetLane(hn::SumOfLanes(DF(), hn::LoadU(DF(), lanes + i * kLanes)));
  }
#endif
}

// Rows of a tile's numbers.
template <quant::Dtype kDtype>
class RawRows {
 public:
  HWY_INLINE RawRows(const DecodeTensor& tensor, const DecodeUnit& unit, uint32_t first)
      : pitch_(tensor.dim * kBytes),
        rows_(unit.bytes + unit.layout.codes_offset + first * pitch_) {}
  HWY_INLINE VF Load(size_t token, size_t d) const {
    return LoadWidened<kDtype>(rows_ + token * pitch_ + d * kBytes);
  }

 private:
  static constexpr size_t kBytes = kDtype == quant::Dtype::kF32 ? 4 : 2;
  const size_t pitch_;
  const std::byte* const rows_;
};

// Scores kTokens tokens from `token` on for kRows row heads, to `scores` [rows][kDecodeTile].
template <quant::Dtype kDtype, size_t kRows, size_t kTokens>
HWY_INLINE void ScoreRawTokens(const RawRows<kDtype>& keys, uint32_t token, const float* queries,
                               uint32_t dim, float* lanes, float* scores) {
  const DF df;
  VF sums[kRows][kTokens];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) sums[r][t] = hn::Zero(df);
  }
  for (uint32_t d = 0; d < dim; d += kLanes) {
    VF key[kTokens];
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) key[t] = keys.Load(token + t, d);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const VF q = hn::LoadU(df, queries + r * dim + d);
#pragma GCC unroll 4
      for (size_t t = 0; t < kTokens; ++t) sums[r][t] = hn::MulAdd(q, key[t], sums[r][t]);
    }
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      hn::StoreU(sums[r][t], df, lanes + (r * kDotTokens + t) * kLanes);
    }
  }
  float dots[kRawDots];
  SumRawDots(lanes, dots);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t t = 0; t < kTokens; ++t) {
      scores[r * kDecodeTile + token + t] = dots[r * kDotTokens + t];
    }
  }
}

template <quant::Dtype kDtype, size_t kRows>
HWY_NOINLINE HWY_ATTR void ScoreRawTile(const DecodeTensor& key, const float* queries,
                                        const DecodeUnit& unit, const DecodeTokens& tile,
                                        LineAsker* asker, const DecodeScratch& scratch) {
  const RawRows<kDtype> keys(key, unit, tile.first);
  uint32_t token = 0;
  for (; token + kDotTokens <= tile.tokens; token += kDotTokens) {
    asker->AskFar<kLinesToDotRaw * kDotTokens / 4>();
    ScoreRawTokens<kDtype, kRows, kDotTokens>(keys, token, queries, key.dim, scratch.lanes,
                                              scratch.scores);
  }
  for (; token < tile.tokens; ++token) {
    ScoreRawTokens<kDtype, kRows, 1>(keys, token, queries, key.dim, scratch.lanes, scratch.scores);
  }
}

// Calls `call` with [begin, end) of each run of bits.
template <class Call>
HWY_INLINE void ForEachStretch(uint64_t bits, const Call& call) {
  while (bits != 0) {
    const auto begin = static_cast<uint32_t>(std::countr_zero(bits));
    const uint32_t end = begin + static_cast<uint32_t>(std::countr_one(bits >> begin));
    call(begin, end);
    if (end == 64) return;
    bits &= ~uint64_t{0} << end;
  }
}

// Adds weights * values to sums, for kVectors vectors of dimensions.
template <quant::Dtype kDtype, size_t kRows, size_t kVectors>
HWY_INLINE void AddRawVectors(const RawRows<kDtype>& values, uint64_t seen, size_t d,
                              const float* weights, LineAsker* asked, float* sums, size_t pitch) {
  const DF df;
  VF of[kRows][kVectors];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      of[r][v] = hn::LoadU(df, sums + r * pitch + d + v * kLanes);
    }
  }
  LineAsker asker = *asked;
  ForEachStretch(seen, [&](uint32_t begin, uint32_t end) HWY_ATTR {
    for (uint32_t t = begin; t < end; ++t) {
      asker.AskFar<kVectors / 2 + 1>();
      VF value[kVectors];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) value[v] = values.Load(t, d + v * kLanes);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        const VF weight = hn::Set(df, weights[r * kDecodeTile + t]);
#pragma GCC unroll 4
        for (size_t v = 0; v < kVectors; ++v) of[r][v] = hn::MulAdd(weight, value[v], of[r][v]);
      }
    }
  });
  *asked = asker;
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(of[r][v], df, sums + r * pitch + d + v * kLanes);
    }
  }
}

// Adds values to the sums of row heads [row, row + kRows) of the strip, which see tokens `seen`.
template <quant::Dtype kDtype, size_t kRows>
HWY_NOINLINE HWY_ATTR void AddRawTile(const DecodeJob& job, const DecodeTensor& value,
                                      const DecodeUnit& unit, uint32_t first, uint64_t seen,
                                      LineAsker* asker, const DecodeStrip& strip, uint32_t row,
                                      const DecodeScratch& scratch) {
  const RawRows<kDtype> values(value, unit, first);
  const float* weights = scratch.scores + row * kDecodeTile;
  float* sums = job.sums.values + (strip.first + row) * job.value_pitch;
  size_t d = 0;
  for (; d + kRawVectors * kLanes <= value.dim; d += kRawVectors * kLanes) {
    AddRawVectors<kDtype, kRows, kRawVectors>(values, seen, d, weights, asker, sums,
                                              job.value_pitch);
  }
  for (; d < value.dim; d += kLanes) {
    AddRawVectors<kDtype, kRows, 1>(values, seen, d, weights, asker, sums, job.value_pitch);
  }
}

template <quant::Dtype kDtype>
class RawStrip {
 public:
  static HWY_INLINE void Score(const DecodeTensor& key, const float* queries, uint32_t rows,
                               const DecodeUnit& unit, const DecodeTokens& tile, LineAsker* asker,
                               const DecodeScratch& scratch) {
    switch (rows) {
      case 1:
        return ScoreRawTile<kDtype, 1>(key, queries, unit, tile, asker, scratch);
      case 2:
        return ScoreRawTile<kDtype, 2>(key, queries, unit, tile, asker, scratch);
      case 3:
        return ScoreRawTile<kDtype, 3>(key, queries, unit, tile, asker, scratch);
      default:
        return ScoreRawTile<kDtype, 4>(key, queries, unit, tile, asker, scratch);
    }
  }
  static HWY_INLINE void Add(const DecodeJob& job, const DecodeTensor& value,
                             const DecodeUnit& unit, const DecodeTokens& tile, LineAsker* asker,
                             const DecodeStrip& strip, const DecodeScratch& scratch) {
    bool alike = true;
    for (uint32_t r = 1; r < strip.rows; ++r) alike &= strip.seen[r] == strip.seen[0];
    if (alike && strip.rows == kStripHeads) {
      return AddRawTile<kDtype, kStripHeads>(job, value, unit, tile.first, strip.seen[0], asker,
                                             strip, 0, scratch);
    }
    // A row never touches a value that it does not see: NaN would survive even weight 0.
    for (uint32_t r = 0; r < strip.rows; ++r) {
      AddRawTile<kDtype, 1>(job, value, unit, tile.first, strip.seen[r], asker, strip, r, scratch);
    }
  }
};

template <class Call>
HWY_INLINE void WithDtype(quant::Dtype dtype, const Call& call) {
  switch (dtype) {
    case quant::Dtype::kF16:
      return call(RawStrip<quant::Dtype::kF16>());
    case quant::Dtype::kBf16:
      return call(RawStrip<quant::Dtype::kBf16>());
    default:
      return call(RawStrip<quant::Dtype::kF32>());
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
