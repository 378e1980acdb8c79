#include "base/checksum.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "openssl/crypto.h"
#include "openssl/evp.h"

#include "base/intrinsics.h"
#include "base/stream_copy.h"

// Compiled for the baseline alone, xxHash hashes with SSE2, at a third of the speed of AVX2 and
// AVX-512. These macros compile its loops for both; Choose() picks one when the program starts.
#if defined(__x86_64__)
#define XXH_X86DISPATCH
#define XXH_DISPATCH_AVX2 1
#define XXH_DISPATCH_AVX512 1
#define XXH_TARGET_AVX2 __attribute__((__target__("avx2")))
#define XXH_TARGET_AVX512 __attribute__((__target__("avx512f")))
#endif
#define XXH_PREFETCH_DIST 1024  // bytes; for pages that are in no cache
#define XXH_INLINE_ALL
#include "xxhash.h"

namespace prefixd::base {
namespace {

// The loops of XXH3-64 for streams and for inputs too long for its special cases.
struct LongHash {
  uint64_t (*hash)(const void* bytes, size_t size, uint64_t seed);
  void (*update)(XXH3_state_t* state, const void* bytes, size_t size);
};

uint64_t HashBaseline(const void* bytes, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, size, seed);
}
void UpdateBaseline(XXH3_state_t* state, const void* bytes, size_t size) {
  XXH3_64bits_update(state, bytes, size);
}

#if defined(__x86_64__) && XXH_VERSION_NUMBER == 801  // these names exist in this version only
XXH_TARGET_AVX2 uint64_t HashAvx2(const void* bytes, size_t size, uint64_t seed) {
  return XXH3_hashLong_64b_withSeed_internal(bytes, size, seed, XXH3_accumulate_512_avx2,
                                             XXH3_scrambleAcc_avx2, XXH3_initCustomSecret);
}
XXH_TARGET_AVX2 void UpdateAvx2(XXH3_state_t* state, const void* bytes, size_t size) {
  XXH3_update(state, static_cast<const xxh_u8*>(bytes), size, XXH3_accumulate_512_avx2,
              XXH3_scrambleAcc_avx2);
}
XXH_TARGET_AVX512 uint64_t HashAvx512(const void* bytes, size_t size, uint64_t seed) {
  return XXH3_hashLong_64b_withSeed_internal(bytes, size, seed, XXH3_accumulate_512_avx512,
                                             XXH3_scrambleAcc_avx512, XXH3_initCustomSecret);
}
XXH_TARGET_AVX512 void UpdateAvx512(XXH3_state_t* state, const void* bytes, size_t size) {
  XXH3_update(state, static_cast<const xxh_u8*>(bytes), size, XXH3_accumulate_512_avx512,
              XXH3_scrambleAcc_avx512);
}
LongHash Choose() {
  if (__builtin_cpu_supports("avx512f")) return {HashAvx512, UpdateAvx512};
  if (__builtin_cpu_supports("avx2")) return {HashAvx2, UpdateAvx2};
  return {HashBaseline, UpdateBaseline};
}
#else
LongHash Choose() { return {HashBaseline, UpdateBaseline}; }
#endif

const LongHash& Long() {
  static const LongHash chosen = Choose();
  return chosen;
}

constexpr size_t kStreamFrom = size_t{64} << 10;  // bytes; smaller copies go through the caches
constexpr size_t kPage = 4096;
// Two memory pages at a time were a quarter faster than four and an eighth faster than three.
constexpr size_t kAtOnce = 2 * kPage;
constexpr size_t kAskedAhead = 8 * kAtOnce;  // prefetched into the second-level cache

// Copies kAtOnce bytes to `buffer`, which is aligned to kLineBytes, taking a cache line of each
// memory page in turn. Hardware prefetches inside one memory page only, so this makes it prefetch
// two at once. The loop prefetches the bytes kAskedAhead further on itself.
using GatherPages = void (*)(std::byte* buffer, const std::byte* from);

void GatherBaseline(std::byte* buffer, const std::byte* from) {
  for (size_t line = 0; line < kPage; line += kLineBytes) {
    for (size_t at = line; at < kAtOnce; at += kPage) {
      __builtin_prefetch(from + at + kAskedAhead, 0, 2);  // past the end it does not fault
      std::memcpy(buffer + at, from + at, kLineBytes);
    }
  }
}

#if defined(__x86_64__)
XXH_TARGET_AVX512 void GatherAvx512(std::byte* buffer, const std::byte* from) {
  for (size_t line = 0; line < kPage; line += kLineBytes) {
    for (size_t at = line; at < kAtOnce; at += kPage) {
      __builtin_prefetch(from + at + kAskedAhead, 0, 2);
      _mm512_store_si512(buffer + at, _mm512_loadu_si512(from + at));
    }
  }
}
#endif

GatherPages Chosen() {
#if defined(__x86_64__)
  static const GatherPages chosen =
      __builtin_cpu_supports("avx512f") ? GatherAvx512 : GatherBaseline;
  return chosen;
#else
  return GatherBaseline;
#endif
}

// Hashes and stores one copy of the bytes, which is on this thread's stack where nobody changes it.
void CopyStreaming(std::span<const std::byte> from, std::byte* to, XXH3_state_t* state) {
  alignas(kLineBytes) std::byte copy[kAtOnce];
  const GatherPages gather = Chosen();
  size_t at = 0;
  for (; at + kAtOnce <= from.size(); at += kAtOnce) {
    gather(copy, from.data() + at);
    Long().update(state, copy, kAtOnce);
    StreamLines(to + at, copy, kAtOnce);
  }
  const size_t rest = from.size() - at;
  std::memcpy(copy, from.data() + at, rest);
  Long().update(state, copy, rest);
  StreamLines(to + at, copy, rest);
  StreamFence();
}

void CopyCached(std::span<const std::byte> from, std::byte* to, XXH3_state_t* state) {
  if (from.empty()) return;
  std::memcpy(to, from.data(), from.size());
  Long().update(state, to, from.size());
}

}  // namespace

uint64_t Xxh3(std::span<const std::byte> bytes, uint64_t seed) {
  if (bytes.size() <= XXH3_MIDSIZE_MAX) {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
  }
  return Long().hash(bytes.data(), bytes.size(), seed);
}

uint64_t CopyAndXxh3(std::span<const std::byte> from, std::byte* to, uint64_t seed) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);  // XXH3_64bits_reset_withSeed reads it
  XXH3_64bits_reset_withSeed(&state, seed);
  if (from.size() >= kStreamFrom && IsLine(to)) {
    CopyStreaming(from, to, &state);
  } else {
    CopyCached(from, to, &state);
  }
  return XXH3_64bits_digest(&state);
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  if (state_ == nullptr) std::abort();  // out of memory
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

Xxh3Stream::~Xxh3Stream() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Xxh3Stream::Begin(uint64_t seed) {
  XXH3_64bits_reset_withSeed(static_cast<XXH3_state_t*>(state_), seed);
}

void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  Long().update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

void Xxh3Stream::CopyAndUpdate(std::span<const std::span<const std::byte>> runs, std::byte* to,
                               Xxh3Stream* second) {
  alignas(kLineBytes) std::byte copy[kAtOnce];
  size_t filled = 0;
  const bool stream = IsLine(to);
  const auto store = [&] {
    Update({copy, filled});
    if (second != nullptr) second->Update({copy, filled});
    if (stream) {
      StreamLines(to, copy, filled);
    } else {
      std::memcpy(to, copy, filled);
    }
    to += filled;
    filled = 0;
  };
  for (std::span<const std::byte> run : runs) {
    while (!run.empty()) {
      const size_t bytes = std::min(run.size(), kAtOnce - filled);
      std::memcpy(copy + filled, run.data(), bytes);
      filled += bytes;
      run = run.subspan(bytes);
      if (filled == kAtOnce) store();
    }
  }
  store();
  StreamFence();
}

uint64_t Xxh3Stream::Sum() const {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_));
}

uint64_t Xxh3Stream::Finish() {
  auto* state = static_cast<XXH3_state_t*>(state_);
  const uint64_t sum = XXH3_64bits_digest(state);
  XXH3_64bits_reset(state);
  return sum;
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  // SHA-256 is built into every OpenSSL: this fails only when memory is exhausted.
  if (EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) != 1) {
    std::abort();
  }
}

Sha256Stream::~Sha256Stream() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256Stream::Update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size());
}

Digest256 Sha256Stream::Finish() {
  Digest256 digest{};
  unsigned int length = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_),
                     reinterpret_cast<unsigned char*>(digest.data()), &length);
  return digest;
}

Digest256 Sha256(std::span<const std::byte> bytes) {
  // One context per thread: making one costs as much as hashing a block of tokens.
  thread_local const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(
      EVP_MD_CTX_new(), EVP_MD_CTX_free);
  static const EVP_MD* const kind = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Digest256 digest{};
  unsigned int length = 0;
  if (EVP_DigestInit_ex(context.get(), kind, nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) != 1 ||
      EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), &length) !=
          1) {
    std::abort();  // out of memory: SHA-256 is built into every OpenSSL
  }
  return digest;
}

bool SameSecret(const Digest256& a, const Digest256& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace prefixd::base
