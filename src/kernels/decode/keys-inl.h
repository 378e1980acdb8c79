// Queries of fast decode as small integers, and scores of a tile, for one SIMD target: included
// once per target.
//
// Let x be the query, xq its codes and k the stored codes, counted from the middle of their range.
// The score of a token is the sum over groups of scale * sum(x (k - middle)) + bias * sum(x), where
// the bias is that of the middle code. The first sum is step * (sum(xq k) - middle * sum(xq)),
// since x and step xq differ by rounding only. That costs least where k is counted from the middle.
#if defined(PREFIXD_KERNELS_DECODE_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PREFIXD_KERNELS_DECODE_KEYS_INL_H_
#undef PREFIXD_KERNELS_DECODE_KEYS_INL_H_
#else
#define PREFIXD_KERNELS_DECODE_KEYS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#include "kernels/common/rows-inl.h"
#include "kernels/decode/dot-inl.h"
#include "kernels/decode/dot_signed-inl.h"
#include "kernels/decode/dot_words-inl.h"
#include "kernels/decode/job.h"
#include "kernels/decode/tile-inl.h"

#if PREFIXD_KERNELS_HAVE_DECODE
HWY_BEFORE_NAMESPACE();
namespace prefixd::kernels::HWY_NAMESPACE {

// Returns 0 if `largest` is too small to divide by.
HWY_INLINE float InverseStep(float largest, float limit) {
  return largest < 1e-30f ? 0.0f : limit / largest;
}

// Converts one group of a row head's query to codes.
HWY_INLINE QueryTerm QuantizeQuery(const float* q, float scale, const DecodeTensor& key,
                                   uint32_t digits, int8_t* codes, size_t digit_pitch) {
  const DF df;
  const VF factor = hn::Set(df, scale);
  VF largest = hn::Zero(df), sum = hn::Zero(df);
  for (uint32_t i = 0; i < key.group; i += kLanes) {
    const VF x = hn::Mul(hn::LoadU(df, q + i), factor);
    largest = hn::Max(largest, hn::Abs(x));
    sum = hn::Add(sum, x);
  }
  const float limit = CodeLimit(digits);
  const float max = hn::GetLane(hn::MaxOfLanes(df, largest));
  const VF inverse = hn::Set(df, InverseStep(max, limit));
  VI code_sum = hn::Zero(DI());
  for (uint32_t i = 0; i < key.group; i += kLanes) {
    const VF x = hn::Mul(hn::LoadU(df, q + i), factor);
    const VI code = hn::NearestInt(hn::Mul(x, inverse));
    code_sum = hn::Add(code_sum, code);
    StoreFactors(code, digits, codes + i * FactorBytes(digits), digit_pitch);
  }
  QueryTerm term;
  term.step = max / limit;
  term.sum = hn::GetLane(hn::SumOfLanes(df, sum));
  const float stepped = term.step * static_cast<float>(hn::GetLane(hn::SumOfLanes(DI(), code_sum)));
  term.centre = -MiddleOf(key) * stepped;
  return term;
}

// Returns the factor of queries: weights are powers of 2; scores to be capped count in caps first.
HWY_INLINE float QueryScale(const AttentionShape& shape) {
  return shape.soft_cap == 0 ? shape.scale * kLog2E : shape.scale / shape.soft_cap;
}

HWY_INLINE void ScaleQuery(const float* q, float scale, uint32_t dim, float* to) {
  for (uint32_t d = 0; d < dim; d += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(DF(), q + d), hn::Set(DF(), scale)), DF(), to + d);
  }
}

HWY_ATTR void PrepareQueriesOnTarget(const DecodeJob& job, uint32_t format_index) {
  const DecodeFormat& format = job.tensors[format_index];
  const DecodeQueries& to = job.queries[format_index];
  const uint32_t group = job.group();
  const float scale = QueryScale(job.shape);
  const uint32_t digits = DigitsOf(format.key, format.digits);
  const size_t code_bytes = format.key.dim * FactorBytes(digits);
  const size_t digit_pitch = job.row_heads() * code_bytes;
  int8_t* codes = to.codes;
  QueryTerm* term = to.terms;
  float* floats = to.floats;
  for (uint32_t kv_head = 0; kv_head < job.shape.kv_heads; ++kv_head) {
    for (const DecodeRow& row : job.rows) {
      for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const float* q = row.q + head * job.shape.query_head_stride;
        if (format.key.raw) {
          ScaleQuery(q, scale, format.key.dim, floats);
          floats += format.key.dim;
          continue;
        }
        for (uint32_t d = 0; d < format.key.dim; d += format.key.group) {
          int8_t* const to = codes + d * FactorBytes(digits);
          *term++ = QuantizeQuery(q + d, scale, format.key, digits, to, digit_pitch);
        }
        codes += code_bytes;
      }
    }
  }
}

// A strip's queries.
struct StripQueries {
  const int8_t* codes = nullptr;
  size_t digit_pitch = 0;
  const QueryTerm* terms = nullptr;
};

// Writes the scores of kVectors vectors of tokens to `scores` [rows][kDecodeTile]. Scales and
// biases are those of these tokens.
template <CodeKind kKind, uint32_t kDigits, size_t kRows, size_t kVectors>
HWY_NOINLINE HWY_ATTR void ScoreTokens(const DecodeTensor& key, const StripQueries& queries,
                                       const TileCodes& codes, LineAsker* asker,
                                       const float* scales, const float* biases, float* scores) {
  const DF df;
  DotInput in;
  in.codes[0] = codes.half[0];
  in.codes[1] = codes.half[1];
  in.stride = codes.stride;
  in.asker = asker;
  in.steps = key.group * key.bits / 32;
  in.factors = queries.codes;
  in.row_pitch = key.dim * FactorBytes(kDigits);
  in.digit_pitch = queries.digit_pitch;
  for (uint32_t g = 0; g < key.groups; ++g) {
    DotSums<kRows, kVectors> dots;
    DotKeys<kKind, kDigits>(in, &dots);
    VF scale[kVectors], bias[kVectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      scale[v] = hn::LoadU(df, scales + g * kDecodeTile + v * kLanes);
      bias[v] = hn::LoadU(df, biases + g * kDecodeTile + v * kLanes);
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      const QueryTerm& term = queries.terms[r * key.groups + g];
      const VF step = hn::Set(df, term.step), centre = hn::Set(df, term.centre);
      const VF sum = hn::Set(df, term.sum);
      float* to = scores + r * kDecodeTile;
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        const VF dot = hn::MulAdd(hn::ConvertTo(df, dots.of[r][v]), step, centre);
        const VF of_bias = g == 0 ? hn::Mul(bias[v], sum)
                                  : hn::MulAdd(bias[v], sum, hn::LoadU(df, to + v * kLanes));
        hn::StoreU(hn::MulAdd(dot, scale[v], of_bias), df, to + v * kLanes);
      }
    }
    in.codes[0] += codes.group_stride;
    in.codes[1] += codes.group_stride;
    in.factors += key.group * FactorBytes(kDigits);
  }
}

// Writes the scores of a tile for kRows row heads to scratch.scores.
template <CodeKind kKind, uint32_t kDigits, size_t kRows>
HWY_INLINE void ScoreTile(const DecodeTensor& key, const StripQueries& queries,
                          const DecodeUnit& unit, const DecodeTokens& tile, LineAsker* asker,
                          const DecodeScratch& scratch) {
  const TileCodes codes = KeyCodesOf(key, unit, tile);
  if constexpr (kWholeTiles) {
    if (tile.tokens > kDecodeTile - kLanes && unit.layout.slots >= tile.first + kDecodeTile) {
      return ScoreTokens<kKind, kDigits, kRows, 4>(key, queries, codes, asker, scratch.key_scales,
                                                   scratch.key_biases, scratch.scores);
    }
  }
  for (uint32_t s = 0; s < tile.steps(); ++s) {
    TileCodes step = s < 2 ? codes : SecondHalf(key, unit, tile, codes);
    step.half[0] += s % 2 * kTileStep * sizeof(uint32_t);
    ScoreTokens<kKind, kDigits, kRows, kTileStep / kLanes>(
        key, queries, step, asker, scratch.key_scales + s * kTileStep,
        scratch.key_biases + s * kTileStep, scratch.scores + s * kTileStep);
  }
}

}  // namespace prefixd::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif  // include guard that flips with the target
