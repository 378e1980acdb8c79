#include "base/checksum.h"

#include <cstdlib>
#include <cstring>

#include "openssl/evp.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace prefixd::base {

uint64_t Xxh3(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 Xxh3Wide(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Hash128 hash;
  static_assert(sizeof(canonical.digest) == sizeof(hash));
  std::memcpy(hash.data(), canonical.digest, sizeof(hash));
  return hash;
}

Xxh3Stream::Xxh3Stream() : state_(XXH3_createState()) {
  if (state_ == nullptr) std::abort();  // out of memory
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

Xxh3Stream::~Xxh3Stream() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Xxh3Stream::Update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

uint64_t Xxh3Stream::Finish() {
  auto* state = static_cast<XXH3_state_t*>(state_);
  const uint64_t sum = XXH3_64bits_digest(state);
  XXH3_64bits_reset(state);
  return sum;
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  // SHA-256 is built into every OpenSSL: only an allocation failure can bring us here.
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
  Sha256Stream stream;
  stream.Update(bytes);
  return stream.Finish();
}

}  // namespace prefixd::base
