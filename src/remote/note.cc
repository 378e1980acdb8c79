#include "remote/note.h"

#include "base/bytes.h"
#include "remote/sealed_record.h"

namespace prefixd::remote {
namespace {

constexpr const char* kFormats = "note";  // of no bundle

}  // namespace

std::string SealNote(const TenantKeys& keys, Seal seal, const ChainName& name,
                     const std::string& text) {
  if (seal == Seal::kChecks) return CheckedRecord(text);
  const RecordHeader header{.seal = seal, .salt = RandomSalt()};
  BundleCipher cipher(keys, header.salt, BoundOf(header, name, kFormats), BundleCipher::Use::kSeal);
  return SealRecord(&cipher, header, text);
}

std::optional<std::string> OpenNote(const TenantKeys& keys, Seal least, const ChainName& name,
                                    std::span<const std::byte> bytes) {
  RecordHeader header;
  std::span<const std::byte> body;
  if (DecodeHeader(bytes, &header, &body) != BadBundle::kNone || header.seal < least) {
    return std::nullopt;
  }
  std::vector<std::byte> plain;
  if (!OpenBody(keys, bytes, header, body, BoundOf(header, name, kFormats), &plain)) {
    return std::nullopt;
  }
  return std::string(base::AsText(plain));
}

}  // namespace prefixd::remote
