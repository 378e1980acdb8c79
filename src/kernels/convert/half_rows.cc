#include "kernels/convert/half_rows.h"

#include <atomic>
#include <cstring>

// Compilers that can enable the instructions for single functions.
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ >= 12
#define PREFIXD_KERNELS_HALF_ROWS 1
#include <immintrin.h>
#else
#define PREFIXD_KERNELS_HALF_ROWS 0
#endif

namespace prefixd::kernels {
namespace {

std::atomic<bool> allowed_by_tests{true};

#if PREFIXD_KERNELS_HALF_ROWS
bool CpuHasHalfArithmetic() { return __builtin_cpu_supports("avx512fp16"); }

[[gnu::target("avx512fp16,avx512bw,avx512vl")]] inline __m512h EachLane(const std::byte* half) {
  int16_t bits;
  std::memcpy(&bits, half, sizeof(bits));
  return _mm512_castsi512_ph(_mm512_set1_epi16(bits));
}
#else
bool CpuHasHalfArithmetic() { return false; }
#endif

}  // namespace

bool HaveHalfArithmetic() {
  static const bool have = CpuHasHalfArithmetic();
  return have && allowed_by_tests.load(std::memory_order_relaxed);
}

void AllowHalfArithmetic(bool allowed) {
  allowed_by_tests.store(allowed, std::memory_order_relaxed);
}

#if PREFIXD_KERNELS_HALF_ROWS
[[gnu::target("avx512fp16,avx512bw,avx512vl")]] void DecodeHalfRow(const HalfRow& row, bool stream,
                                                                   std::byte* to) {
  constexpr size_t kLanes = 32;
  const uint8_t* codes = row.codes;
  auto* at = reinterpret_cast<__m512i*>(to);
  for (size_t g = 0; g < row.groups; ++g) {
    const __m512h scale = EachLane(row.scales + 2 * g), bias = EachLane(row.biases + 2 * g);
    for (size_t e = 0; e < row.group_size; e += kLanes, codes += kLanes, ++at) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
      const __m512h code = _mm512_cvtepu16_ph(_mm512_cvtepu8_epi16(bytes));
      const __m512h sum = _mm512_add_ph(_mm512_mul_ph(code, scale), bias);
      if (stream) {
        _mm512_stream_si512(at, _mm512_castph_si512(sum));
      } else {
        _mm512_storeu_si512(at, _mm512_castph_si512(sum));
      }
    }
  }
}
#else
void DecodeHalfRow(const HalfRow&, bool, std::byte*) {}  // never called
#endif

}  // namespace prefixd::kernels
