// Checksums and digests: XXH3 for integrity, SHA-256 for the identity of blocks and spaces.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace prefixd::base {

using Digest256 = std::array<std::byte, 32>;
using Hash128 = std::array<std::byte, 16>;

uint64_t Xxh3(std::span<const std::byte> bytes, uint64_t seed = 0);
// Copies `from` to `to` and returns the sum of the stored bytes. Cheaper than a copy and then a
// hash. The sum is right even if somebody writes to `from` meanwhile: each byte of `from` is read
// once. Nobody else may write to `to`. Copies of 64 KiB and more to 64-byte aligned memory bypass
// the caches.
uint64_t CopyAndXxh3(std::span<const std::byte> from, std::byte* to, uint64_t seed = 0);
Digest256 Sha256(std::span<const std::byte> bytes);
// Takes a time that does not tell how many bytes are equal.
bool SameSecret(const Digest256& a, const Digest256& b);

// Xxh3 over bytes that arrive in pieces. Not thread-safe.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(const Xxh3Stream&) = delete;
  Xxh3Stream& operator=(const Xxh3Stream&) = delete;
  void Begin(uint64_t seed);  // starts a new sum; without it, the seed is 0
  void Update(std::span<const std::byte> bytes);
  // Copies the runs to `to`, one after the other, and adds the stored bytes to the sum, as
  // CopyAndXxh3 does. Adds them to `second` too unless it is null. Nobody else may write to `to`.
  void CopyAndUpdate(std::span<const std::span<const std::byte>> runs, std::byte* to,
                     Xxh3Stream* second = nullptr);
  uint64_t Sum() const;  // of everything so far
  uint64_t Finish();     // of everything so far; then starts anew with seed 0

 private:
  void* state_;  // XXH3_state_t, owned
};

// SHA-256 over data that arrives in pieces. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void Update(std::span<const std::byte> bytes);
  Digest256 Finish();  // at most one call

 private:
  void* context_;  // EVP_MD_CTX, owned
};

}  // namespace prefixd::base
