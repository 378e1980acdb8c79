#include "remote/sealed_record.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/checksum.h"

namespace prefixd::remote {

std::string SealRecord(BundleCipher* cipher, const RecordHeader& header, const std::string& body) {
  std::string sealed(body.size(), '\0');
  const std::span<const std::byte> plain = base::AsBytes(body);
  const Tag tag =
      cipher->Seal(kRecordPart, {&plain, 1}, reinterpret_cast<std::byte*>(sealed.data()));
  std::string record = EncodeHeader(header, body.size()) + sealed;
  record.append(base::AsText(tag));
  return record;
}

std::string CheckedRecord(const std::string& body) {
  base::ByteWriter writer;
  writer.Raw(base::AsBytes(EncodeHeader({.seal = Seal::kChecks}, body.size())));
  writer.Raw(base::AsBytes(body));
  writer.Fixed(base::Xxh3(base::AsBytes(writer.bytes())));
  return writer.Take();
}

bool OpenBody(const TenantKeys& keys, std::span<const std::byte> bytes, const RecordHeader& header,
              std::span<const std::byte> body, const std::string& bound,
              std::vector<std::byte>* plain) {
  plain->assign(body.begin(), body.end());
  const std::span<const std::byte> seal = bytes.subspan(kRecordHeaderBytes + body.size());
  if (header.seal == Seal::kChecks) {
    base::ByteReader reader(seal);
    return reader.Fixed<uint64_t>() == base::Xxh3(bytes.first(bytes.size() - seal.size()));
  }
  BundleCipher cipher(keys, header.salt, bound, BundleCipher::Use::kOpen);
  const std::span<std::byte> run(*plain);
  Tag tag;
  std::ranges::copy(seal, tag.begin());
  return cipher.Open(kRecordPart, {&run, 1}, tag);
}

}  // namespace prefixd::remote
