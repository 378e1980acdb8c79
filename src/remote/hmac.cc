#include "remote/hmac.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "openssl/core_names.h"
#include "openssl/crypto.h"
#include "openssl/evp.h"
#include "openssl/kdf.h"
#include "openssl/params.h"

#include "base/bytes.h"

namespace prefixd::remote {
namespace {

OSSL_PARAM OctetParam(const char* name, std::span<const std::byte> bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()),
                                           bytes.size());
}

}  // namespace

void Wipe(std::span<std::byte> secret) { OPENSSL_cleanse(secret.data(), secret.size()); }

Hmac::Hmac(const Key256& key) {
  inner_.fill(std::byte{0x36});
  outer_.fill(std::byte{0x5c});
  for (size_t i = 0; i < key.size(); ++i) {
    inner_[i] ^= key[i];
    outer_[i] ^= key[i];
  }
}

Hmac::~Hmac() {
  Wipe(inner_);
  Wipe(outer_);
}

// OpenSSL's own HMAC makes contexts for every message, which takes longer than the hashing.
base::Digest256 Hmac::Of(std::span<const std::byte> message) const {
  std::array<std::byte, 1024> small;
  std::vector<std::byte> large(
      kBlockBytes + message.size() > small.size() ? kBlockBytes + message.size() : 0);
  std::byte* const padded = large.empty() ? small.data() : large.data();
  std::ranges::copy(inner_, padded);
  std::ranges::copy(message, padded + kBlockBytes);
  const base::Digest256 inner = base::Sha256({padded, kBlockBytes + message.size()});
  std::ranges::copy(outer_, padded);
  std::ranges::copy(inner, padded + kBlockBytes);
  const base::Digest256 digest = base::Sha256({padded, kBlockBytes + inner.size()});
  Wipe({padded, kBlockBytes});
  return digest;
}

Key256 Hkdf(std::span<const std::byte> secret, std::span<const std::byte> salt,
            std::string_view info) {
  static EVP_KDF* const kind = EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(kind),
                                                                          EVP_KDF_CTX_free);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OctetParam(OSSL_KDF_PARAM_KEY, secret), OctetParam(OSSL_KDF_PARAM_SALT, salt),
      OctetParam(OSSL_KDF_PARAM_INFO, base::AsBytes(info)), OSSL_PARAM_construct_end()};
  Key256 key{};
  if (EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(),
                     params) != 1) {
    std::abort();  // out of memory, or the caller's requirements do not hold
  }
  return key;
}

}  // namespace prefixd::remote
