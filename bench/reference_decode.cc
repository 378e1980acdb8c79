#include "bench/reference_decode.h"

#if defined(__x86_64__)
#if !defined(__clang__)  // GCC 12 warns of its own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC optimize("O3")  // as the experiment was built, whatever the build
#endif
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#define PREFIXD_VNNI [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")]]
#define PREFIXD_VNNI_INLINE PREFIXD_VNNI [[gnu::always_inline]] inline

namespace prefixd::bench {
namespace {

constexpr int kHeads = kExperimentHeads, kGroups = 2, kGroup = 64;
constexpr size_t kLine = 64;

// e^x for x <= 0, relative error about 2e-7.
PREFIXD_VNNI_INLINE __m512 Exp(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
  const __m512 power = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  const __m512 whole = _mm512_roundscale_ps(power, 8);
  const __m512 f = _mm512_sub_ps(power, whole);
  __m512 p = _mm512_set1_ps(1.8775767e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.9893397e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5826318e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4015361e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9315308e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.9999994e-1f));
  return _mm512_scalef_ps(p, whole);
}

PREFIXD_VNNI_INLINE __m512 LoadHalves(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

PREFIXD_VNNI_INLINE __m512i FourBytes(const int8_t* from) {
  int32_t word;
  std::memcpy(&word, from, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Without the copies of registers that GCC makes around its intrinsic.
PREFIXD_VNNI_INLINE __m512i AddDots(__m512i sums, __m512i bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(bytes), "v"(signed_bytes));
  return sums;
}

PREFIXD_VNNI_INLINE void PrefetchL2(const uint8_t* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

// The queries as signed bytes, a step a group.
struct Queries {
  alignas(64) int8_t codes[kHeads][kExperimentDim];
  float step[kHeads][kGroups];
  float sum[kHeads][kGroups];
  float center[kHeads][kGroups];  // 128 * (sum - step * sum of codes)
};

PREFIXD_VNNI void LoadQueries(const float* query, Queries& to) {
  for (int h = 0; h < kHeads; ++h) {
    for (int g = 0; g < kGroups; ++g) {
      const float* from = query + h * int{kExperimentDim} + g * kGroup;
      float largest = 0, sum = 0;
      for (int i = 0; i < kGroup; ++i) {
        largest = std::max(largest, std::fabs(from[i]));
        sum += from[i];
      }
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      int codes = 0;
      for (int i = 0; i < kGroup; ++i) {
        const auto code = static_cast<int8_t>(std::lrintf(from[i] * inverse));
        to.codes[h][g * kGroup + i] = code;
        codes += code;
      }
      to.step[h][g] = largest / 127.0f;
      to.sum[h][g] = sum;
      to.center[h][g] = 128.0f * (sum - to.step[h][g] * static_cast<float>(codes));
    }
  }
}

// What is carried from page to page.
struct State {
  alignas(64) float values[kHeads][kExperimentDim];
  float largest[kHeads], sum[kHeads], bias[kHeads][kGroups];
};

// Weights of one page as signed bytes.
struct Weights {
  alignas(64) int8_t codes[kGroups][kHeads][kExperimentTokens];
  float step[kGroups][kHeads];
  float rescale[kHeads];  // of what was summed before
};

// Scores of 32 tokens.
PREFIXD_VNNI_INLINE void ScoreTile(const ExperimentPage& page, const uint8_t* next,
                                   const Queries& queries, int tile, __m512 (&scores)[kHeads][4]) {
  __m512 sums[2][kHeads];
#pragma GCC unroll 2
  for (int g = 0; g < kGroups; ++g) {
    __m512i low[kHeads], high[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) low[h] = high[h] = _mm512_setzero_si512();
    for (int c = 0; c < 16; ++c) {
      const __m512i k0 = _mm512_loadu_si512(page.key[tile][g * 16 + c][0]);
      const __m512i k1 = _mm512_loadu_si512(page.key[tile][g * 16 + c][1]);
      PrefetchL2(next + static_cast<size_t>(tile * 64 + g * 32 + c * 2) * kLine);
      PrefetchL2(next + static_cast<size_t>(tile * 64 + g * 32 + c * 2 + 1) * kLine);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        const __m512i q = FourBytes(&queries.codes[h][g * kGroup + c * 4]);
        low[h] = AddDots(low[h], k0, q);
        high[h] = AddDots(high[h], k1, q);
      }
    }
    const __m512 scale0 = LoadHalves(&page.key_scale[g][tile * 32]);
    const __m512 scale1 = LoadHalves(&page.key_scale[g][tile * 32 + 16]);
    const __m512 bias0 = LoadHalves(&page.key_bias[g][tile * 32]);
    const __m512 bias1 = LoadHalves(&page.key_bias[g][tile * 32 + 16]);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const __m512 step = _mm512_set1_ps(queries.step[h][g]);
      const __m512 sum = _mm512_set1_ps(queries.sum[h][g]);
      const __m512 center = _mm512_set1_ps(queries.center[h][g]);
      __m512 x0 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(low[h]), step, center);
      __m512 x1 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[h]), step, center);
      x0 = _mm512_fmadd_ps(x0, scale0, _mm512_mul_ps(bias0, sum));
      x1 = _mm512_fmadd_ps(x1, scale1, _mm512_mul_ps(bias1, sum));
      sums[0][h] = g == 0 ? x0 : _mm512_add_ps(sums[0][h], x0);
      sums[1][h] = g == 0 ? x1 : _mm512_add_ps(sums[1][h], x1);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    scores[h][tile * 2] = sums[0][h];
    scores[h][tile * 2 + 1] = sums[1][h];
  }
}

// Softmax weights of one page, as bytes of weight * scale; sums and biases.
PREFIXD_VNNI_INLINE void Weigh(const ExperimentPage& page, const uint8_t* next,
                               const __m512 (&scores)[kHeads][4], State& state, Weights& weights) {
  __m512 scale[kGroups][4], bias[kGroups][4];
#pragma GCC unroll 2
  for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      scale[g][i] = LoadHalves(&page.value_scale[g][i * 16]);
      bias[g][i] = LoadHalves(&page.value_bias[g][i * 16]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    const size_t line = static_cast<size_t>(h) * 2 * kLine;
    PrefetchL2(next + offsetof(ExperimentPage, key_scale) + line);
    PrefetchL2(next + offsetof(ExperimentPage, key_scale) + line + kLine);
    PrefetchL2(next + offsetof(ExperimentPage, value_scale) + line);
    PrefetchL2(next + offsetof(ExperimentPage, value_scale) + line + kLine);
    const __m512(&x)[4] = scores[h];
    const float most =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
    const float largest = std::max(state.largest[h], most);
    const float rescale = largest == state.largest[h] ? 1.0f : std::exp(state.largest[h] - largest);
    state.largest[h] = largest;
    weights.rescale[h] = rescale;
    const __m512 base = _mm512_set1_ps(largest);
    __m512 e[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) e[i] = Exp(_mm512_sub_ps(x[i], base));
    state.sum[h] =
        state.sum[h] * rescale +
        _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(e[0], e[1]), _mm512_add_ps(e[2], e[3])));
    for (int g = 0; g < kGroups; ++g) {
      __m512 scaled[4];
      __m512 top = _mm512_setzero_ps(), biases = _mm512_setzero_ps(), sums = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        scaled[i] = _mm512_mul_ps(e[i], scale[g][i]);
        top = _mm512_max_ps(top, _mm512_abs_ps(scaled[i]));
        biases = _mm512_fmadd_ps(e[i], bias[g][i], biases);
        sums = _mm512_add_ps(sums, scaled[i]);
      }
      const float largest_weight = _mm512_reduce_max_ps(top);
      const float step = largest_weight * (1.0f / 127.0f);
      weights.step[g][h] = step;
      const __m512 inverse = _mm512_set1_ps(largest_weight > 0 ? 127.0f / largest_weight : 0.0f);
      __m512i codes = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(scaled[i], inverse));
        codes = _mm512_add_epi32(codes, code);
        _mm_store_si128(reinterpret_cast<__m128i*>(&weights.codes[g][h][i * 16]),
                        _mm512_cvtepi32_epi8(code));
      }
      // Values count from -8: this puts right what rounding the weights took from the mean.
      const __m512 lost = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(step), sums);
      biases = _mm512_fmadd_ps(_mm512_set1_ps(8.0f), lost, biases);
      state.bias[h][g] = state.bias[h][g] * rescale + _mm512_reduce_add_ps(biases);
    }
  }
}

PREFIXD_VNNI_INLINE void AddValues(const ExperimentPage& page, const uint8_t* next,
                                   const Weights& weights, State& state) {
  const __m512i nibble = _mm512_set1_epi8(15);
  for (int g = 0; g < kGroups; ++g) {
    __m512i sums[kHeads][4];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) sums[h][i] = _mm512_setzero_si512();
    }
    for (int t = 0; t < 16; ++t) {
      const __m512i a = _mm512_loadu_si512(page.value[g][t][0]);
      const __m512i b = _mm512_loadu_si512(page.value[g][t][1]);
      const uint8_t* const line =
          next + offsetof(ExperimentPage, value) + static_cast<size_t>(g * 32 + t * 2) * kLine;
      PrefetchL2(line);
      PrefetchL2(line + kLine);
      const __m512i v0 = _mm512_and_si512(a, nibble);
      const __m512i v1 = _mm512_and_si512(_mm512_srli_epi16(a, 4), nibble);
      const __m512i v2 = _mm512_and_si512(b, nibble);
      const __m512i v3 = _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        const __m512i w = FourBytes(&weights.codes[g][h][t * 4]);
        sums[h][0] = AddDots(sums[h][0], v0, w);
        sums[h][1] = AddDots(sums[h][1], v1, w);
        sums[h][2] = AddDots(sums[h][2], v2, w);
        sums[h][3] = AddDots(sums[h][3], v3, w);
      }
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const __m512 step = _mm512_set1_ps(weights.step[g][h]);
      const __m512 rescale = _mm512_set1_ps(weights.rescale[h]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        float* const to = &state.values[h][g * kGroup + i * 16];
        _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[h][i]), step,
                                            _mm512_mul_ps(_mm512_load_ps(to), rescale)));
      }
    }
  }
}

// One group of MLX's affine quantization: codes, scale and bias.
PREFIXD_VNNI void QuantizeGroup(const float* from, int bits, uint8_t* codes, uint16_t* scale,
                                uint16_t* bias) {
  const auto most = static_cast<float>((1 << bits) - 1);
  const float low = *std::min_element(from, from + kGroup);
  const float high = *std::max_element(from, from + kGroup);
  const bool from_low = std::fabs(low) > std::fabs(high);
  float step = std::max((high - low) / most, 1e-7f);
  step = from_low ? step : -step;
  const float edge = from_low ? low : high;
  const float zero = std::rint(edge / step);
  if (zero != 0) step = edge / zero;
  const float base = zero != 0 ? edge : 0;
  for (int i = 0; i < kGroup; ++i) {
    codes[i] =
        static_cast<uint8_t>(std::min(std::max(std::rint((from[i] - base) / step), 0.0f), most));
  }
  *scale = static_cast<uint16_t>(_cvtss_sh(step, 0));
  *bias = static_cast<uint16_t>(_cvtss_sh(base, 0));
}

}  // namespace

bool CanRunExperiment() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

PREFIXD_VNNI void FillExperimentPage(const float* keys, const float* values, ExperimentPage* page) {
  std::memset(page, 0, sizeof(*page));
  for (int t = 0; t < int{kExperimentTokens}; ++t) {
    for (int g = 0; g < kGroups; ++g) {
      const size_t at = static_cast<size_t>(t) * kExperimentDim + static_cast<size_t>(g * kGroup);
      uint8_t codes[kGroup];
      QuantizeGroup(keys + at, 8, codes, &page->key_scale[g][t], &page->key_bias[g][t]);
      for (int i = 0; i < kGroup; ++i) {
        const int c = g * kGroup + i;
        page->key[t / 32][c / 4][t / 16 % 2][t % 16][c % 4] = codes[i];
      }
      QuantizeGroup(values + at, 4, codes, &page->value_scale[g][t], &page->value_bias[g][t]);
      for (int i = 0; i < kGroup; ++i) {
        uint8_t& byte = page->value[g][t / 4][i / 32][i % 16 * 4 + t % 4];
        byte = static_cast<uint8_t>(byte | (i / 16 % 2 == 0 ? codes[i] : codes[i] << 4));
      }
    }
  }
}

PREFIXD_VNNI void DecodeExperiment(const ExperimentPage* pages, size_t count, const float* query,
                                   size_t ahead, float* out) {
  Queries queries;
  LoadQueries(query, queries);
  State state{};
  for (float& largest : state.largest) largest = -INFINITY;
  for (size_t p = 0; p < count; ++p) {
    const ExperimentPage& page = pages[p];
    const auto* const next = reinterpret_cast<const uint8_t*>(&page + ahead);
    __m512 scores[kHeads][4];
    ScoreTile(page, next, queries, 0, scores);
    ScoreTile(page, next, queries, 1, scores);
    Weights weights;
    Weigh(page, next, scores, state, weights);
    AddValues(page, next, weights, state);
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int i = 0; i < int{kExperimentDim}; ++i) {
      out[h * int{kExperimentDim} + i] =
          (state.values[h][i] + state.bias[h][i / kGroup]) / state.sum[h];
    }
  }
}

}  // namespace prefixd::bench

#else

namespace prefixd::bench {

bool CanRunExperiment() { return false; }
void FillExperimentPage(const float*, const float*, ExperimentPage*) {}
void DecodeExperiment(const ExperimentPage*, size_t, const float*, size_t, float*) {}

}  // namespace prefixd::bench

#endif
