#include "remote/bundle_cipher.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "openssl/core_names.h"
#include "openssl/evp.h"

#include "base/bytes.h"
#include "base/random.h"

namespace prefixd::remote {
namespace {

constexpr size_t kNonceBytes = 12;

// What OpenSSL refuses here it refuses for want of memory alone.
void Check(bool done) {
  if (!done) std::abort();
}

unsigned char* Chars(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* Chars(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

Salt RandomSalt() {
  const std::array<uint64_t, 2> words{base::RandomWord(), base::RandomWord()};
  Salt salt;
  std::memcpy(salt.data(), words.data(), salt.size());
  return salt;
}

BundleCipher::BundleCipher(const TenantKeys& keys, const Salt& salt, std::string bound, Use use)
    : bound_(std::move(bound)), use_(use), context_(EVP_CIPHER_CTX_new()) {
  static const EVP_CIPHER* const kind = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  base::Digest256 key = Hmac(keys.sealing).Of(salt);
  Check(EVP_CipherInit_ex2(context_, kind, Chars(key.data()), nullptr, use == Use::kSeal ? 1 : 0,
                           nullptr) == 1);
  Wipe(key);
}

BundleCipher::~BundleCipher() { EVP_CIPHER_CTX_free(context_); }  // wipes the key

bool BundleCipher::Begin(const BundlePart& part) {
  std::array<std::byte, kNonceBytes> nonce{};
  std::memcpy(nonce.data(), &part.nonce, sizeof(part.nonce));
  base::ByteWriter place;
  place.Fixed(part.nonce);
  place.Fixed(part.stripes);
  int done = 0;
  if (EVP_CipherInit_ex2(context_, nullptr, nullptr, Chars(nonce.data()), -1, nullptr) != 1) {
    return false;
  }
  for (const std::string& also : {bound_, place.bytes()}) {
    if (EVP_CipherUpdate(context_, nullptr, &done, Chars(base::AsBytes(also).data()),
                         static_cast<int>(also.size())) != 1) {
      return false;
    }
  }
  return true;
}

Tag BundleCipher::Seal(const BundlePart& part, std::span<const std::span<const std::byte>> runs,
                       std::byte* to) {
  Check(use_ == Use::kSeal && Begin(part));
  int done = 0;
  for (const std::span<const std::byte> run : runs) {
    Check(EVP_EncryptUpdate(context_, Chars(to), &done, Chars(run.data()),
                            static_cast<int>(run.size())) == 1);
    to += done;
  }
  Tag tag{};
  Check(EVP_EncryptFinal_ex(context_, Chars(to), &done) == 1);
  Check(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, tag.size(), tag.data()) == 1);
  return tag;
}

bool BundleCipher::Open(const BundlePart& part, std::span<const std::span<std::byte>> runs,
                        const Tag& tag) {
  Check(use_ == Use::kOpen);
  if (!Begin(part)) return false;
  int done = 0;
  for (const std::span<std::byte> run : runs) {
    if (EVP_DecryptUpdate(context_, Chars(run.data()), &done, Chars(run.data()),
                          static_cast<int>(run.size())) != 1) {
      return false;
    }
  }
  Tag expected = tag;
  std::byte nothing{};
  return EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, expected.size(), expected.data()) ==
             1 &&
         EVP_DecryptFinal_ex(context_, Chars(&nothing), &done) == 1;
}

}  // namespace prefixd::remote
