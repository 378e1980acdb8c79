#include "bench/reference.h"

#include <cstring>

namespace prefixd::bench {
namespace {

// Eight independent sums, so that loads and not additions are what limits.
template <typename Vector>
[[gnu::always_inline]] inline uint64_t Sum(const std::byte* from, size_t bytes) {
  constexpr size_t kSums = 8;
  constexpr size_t kLanes = sizeof(Vector) / sizeof(uint64_t);
  Vector sums[kSums] = {};
  for (size_t at = 0; at < bytes; at += kSums * sizeof(Vector)) {
    const auto* next = reinterpret_cast<const Vector*>(from + at);
#pragma GCC unroll 8
    for (size_t i = 0; i < kSums; ++i) sums[i] += next[i];
  }
  uint64_t total = 0;
  for (const Vector& sum : sums) {
    for (size_t lane = 0; lane < kLanes; ++lane) total += sum[lane];
  }
  return total;
}

typedef uint64_t Vector128 __attribute__((vector_size(16), may_alias));
#if defined(__x86_64__)
typedef uint64_t Vector256 __attribute__((vector_size(32), may_alias));
typedef uint64_t Vector512 __attribute__((vector_size(64), may_alias));
[[gnu::target("avx2")]] uint64_t SumAvx2(const std::byte* from, size_t bytes) {
  return Sum<Vector256>(from, bytes);
}
[[gnu::target("avx512f")]] uint64_t SumAvx512(const std::byte* from, size_t bytes) {
  return Sum<Vector512>(from, bytes);
}
#endif

}  // namespace

uint64_t StreamRead(const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return SumAvx512(from, bytes);
  if (__builtin_cpu_supports("avx2")) return SumAvx2(from, bytes);
#endif
  return Sum<Vector128>(from, bytes);
}

[[gnu::noinline]] void CopyBytes(const std::byte* from, std::byte* to, size_t bytes) {
  std::memcpy(to, from, bytes);
}

[[gnu::noinline]] bool SameBytes(const std::byte* a, const std::byte* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

}  // namespace prefixd::bench
