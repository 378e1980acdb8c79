#include <cstring>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/random.h"
#include "remote/bundle.h"
#include "remote/bundle_cipher.h"
#include "remote/record.h"
#include "remote/stripes.h"

namespace prefixd::remote {
namespace {

Salt RandomSalt() {
  const std::array<uint64_t, 2> words{base::RandomWord(), base::RandomWord()};
  Salt salt;
  std::memcpy(salt.data(), words.data(), salt.size());
  return salt;
}

size_t BytesOf(const ConstRuns& runs) {
  size_t bytes = 0;
  for (const std::span<const std::byte> run : runs) bytes += run.size();
  return bytes;
}

// Room for stripes of these runs, each with `after` bytes behind them.
void MakeRoom(const std::vector<ConstRuns>& stripes, size_t after, SealedBundle* bundle) {
  size_t total = 0;
  for (const ConstRuns& runs : stripes) total += BytesOf(runs) + after;
  bundle->bytes = std::make_unique_for_overwrite<std::byte[]>(total);
  const std::byte* at = bundle->bytes.get();
  for (const ConstRuns& runs : stripes) {
    bundle->stripes.emplace_back(at, BytesOf(runs) + after);
    at += bundle->stripes.back().size();
  }
}

SealedBundle Sealed(const TenantKeys& keys, const BundleRecord& record,
                    const std::vector<ConstRuns>& stripes) {
  const RecordHeader header{.seal = Seal::kAes256Gcm, .salt = RandomSalt()};
  BundleCipher cipher(keys, header.salt, BoundOf(header, record.name, record.formats),
                      BundleCipher::Use::kSeal);
  SealedBundle bundle;
  MakeRoom(stripes, sizeof(Tag), &bundle);
  const auto count = static_cast<uint32_t>(stripes.size());
  std::byte* to = bundle.bytes.get();
  for (uint32_t i = 0; i < count; ++i) {
    const Tag tag = cipher.Seal(StripePart(i, count), stripes[i], to);
    to += bundle.stripes[i].size();
    std::memcpy(to - tag.size(), tag.data(), tag.size());
  }
  const std::string body = EncodeBody(record, count, {});
  std::string sealed(body.size(), '\0');
  const std::span<const std::byte> plain = base::AsBytes(body);
  const Tag tag =
      cipher.Seal(kRecordPart, {&plain, 1}, reinterpret_cast<std::byte*>(sealed.data()));
  bundle.record = EncodeHeader(header, body.size()) + sealed;
  bundle.record.append(base::AsText(tag));
  return bundle;
}

SealedBundle Checked(const BundleRecord& record, const std::vector<ConstRuns>& stripes) {
  SealedBundle bundle;
  MakeRoom(stripes, 0, &bundle);
  std::vector<uint64_t> sums;
  std::byte* to = bundle.bytes.get();
  base::Xxh3Stream sum;
  for (size_t i = 0; i < stripes.size(); ++i) {
    sum.CopyAndUpdate(stripes[i], to);
    sums.push_back(sum.Finish());
    to += bundle.stripes[i].size();
  }
  const std::string body = EncodeBody(record, static_cast<uint32_t>(stripes.size()), sums);
  base::ByteWriter writer;
  writer.Raw(base::AsBytes(EncodeHeader({.seal = Seal::kChecks}, body.size())));
  writer.Raw(base::AsBytes(body));
  writer.Fixed(base::Xxh3(base::AsBytes(writer.bytes())));
  bundle.record = writer.Take();
  return bundle;
}

}  // namespace

SealedBundle SealBundle(const TenantKeys& keys, Seal seal, const BundleRecord& record,
                        std::span<const std::span<const std::byte>> pages) {
  const std::vector<ConstRuns> stripes = CutStripes(pages);
  return seal == Seal::kChecks ? Checked(record, stripes) : Sealed(keys, record, stripes);
}

}  // namespace prefixd::remote
