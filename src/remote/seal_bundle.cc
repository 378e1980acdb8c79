#include <cstring>

#include "base/checksum.h"
#include "remote/bundle.h"
#include "remote/bundle_cipher.h"
#include "remote/record.h"
#include "remote/sealed_record.h"
#include "remote/stripes.h"

namespace prefixd::remote {
namespace {

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
  bundle.record = SealRecord(&cipher, header, EncodeBody(record, count, {}));
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
  bundle.record = CheckedRecord(EncodeBody(record, static_cast<uint32_t>(stripes.size()), sums));
  return bundle;
}

}  // namespace

SealedBundle SealBundle(const TenantKeys& keys, Seal seal, const BundleRecord& record,
                        std::span<const std::span<const std::byte>> pages) {
  const std::vector<ConstRuns> stripes = CutStripes(pages);
  return seal == Seal::kChecks ? Checked(record, stripes) : Sealed(keys, record, stripes);
}

}  // namespace prefixd::remote
