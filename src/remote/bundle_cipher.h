// AES-256-GCM of one bundle.
//
// Every bundle has a key of its own: HMAC-SHA256(sealing key, salt), with a random salt. Under it
// the record is sealed with nonce 0 and stripe i with nonce i + 1, so no nonce is used twice.
//
// A value is for one thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "remote/bundle.h"
#include "remote/names.h"

struct evp_cipher_ctx_st;  // of OpenSSL

namespace prefixd::remote {

// Which part of a bundle is sealed. A seal holds for its part alone.
struct BundlePart {
  uint32_t nonce = 0;    // 0 the record, i + 1 stripe i
  uint32_t stripes = 0;  // of the bundle; 0 for the record, which says how many there are
};
inline constexpr BundlePart kRecordPart{};
inline BundlePart StripePart(uint32_t stripe, uint32_t stripes) { return {stripe + 1, stripes}; }

// For a bundle, or a note, that is sealed now.
Salt RandomSalt();

class BundleCipher {
 public:
  enum class Use { kSeal, kOpen };
  // `bound` is what all seals of the bundle hold for besides its bytes: its name, above all.
  BundleCipher(const TenantKeys& keys, const Salt& salt, std::string bound, Use use);
  ~BundleCipher();
  BundleCipher(const BundleCipher&) = delete;
  BundleCipher& operator=(const BundleCipher&) = delete;

  // Writes the runs' bytes, sealed, to `to`, which has room for all and is none of them. Reads each
  // byte of the runs once. Requires: made for kSeal, and not called for this part before.
  Tag Seal(const BundlePart& part, std::span<const std::span<const std::byte>> runs, std::byte* to);
  // Opens the runs in place. False: these are not the bytes that were sealed as this part; the runs
  // hold anything then. Requires: made for kOpen.
  bool Open(const BundlePart& part, std::span<const std::span<std::byte>> runs, const Tag& tag);

 private:
  bool Begin(const BundlePart& part);

  const std::string bound_;
  const Use use_;
  evp_cipher_ctx_st* const context_;  // owned
};

}  // namespace prefixd::remote
