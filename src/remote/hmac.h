// HMAC-SHA256 (RFC 2104) of short messages, and keys derived by HKDF-SHA256 (RFC 5869).
//
// Thread-safe.
#pragma once
#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "base/checksum.h"

namespace prefixd::remote {

using Key256 = std::array<std::byte, 32>;

// Overwrites a secret that is not needed any more. The compiler does not leave it out.
void Wipe(std::span<std::byte> secret);

class Hmac {
 public:
  explicit Hmac(const Key256& key);
  ~Hmac();
  Hmac(const Hmac&) = default;
  Hmac& operator=(const Hmac&) = default;

  base::Digest256 Of(std::span<const std::byte> message) const;

 private:
  static constexpr size_t kBlockBytes = 64;  // of SHA-256
  using Pad = std::array<std::byte, kBlockBytes>;
  Pad inner_, outer_;
};

// Returns the first 32 bytes of HKDF(secret, salt, info). Requires: `secret` is not empty, `info`
// has at most 1024 bytes.
Key256 Hkdf(std::span<const std::byte> secret, std::span<const std::byte> salt,
            std::string_view info);

}  // namespace prefixd::remote
