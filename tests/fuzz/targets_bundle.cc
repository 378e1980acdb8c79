// What other hosts, or whoever writes to their server, left in the store that hosts share.
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "remote/bundle_cipher.h"
#include "remote/record.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/targets.h"

namespace prefixd::fuzz {
namespace {

using remote::BadBundle;
using remote::Seal;

// The block that is asked for.
struct Asked {
  Asked() {
    block::LayerGroup state;
    state.kind = block::LayerKind::kState;
    state.state_bytes = 300'000;  // in two stripes
    groups = {state, state};
    record.generation = 3;
    record.name[0] = record.parent[1] = std::byte{7};
    record.first_token = 16;
    record.formats = "s";
    record.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    record.content = {{.start = 2, .item_offset = 1, .length = 3}};
    record.pages = {{.group = 0, .rung = 16, .page_bytes = state.state_bytes}};
  }
  remote::Wanted wanted() const {
    return {.least = Seal::kChecks,
            .groups = groups,
            .generation = record.generation,
            .name = record.name,
            .parent = record.parent,
            .first_token = record.first_token,
            .formats = record.formats,
            .block = {record.tokens, record.content}};
  }
  std::vector<block::LayerGroup> groups;
  remote::BundleRecord record{};
};

const Asked& TheAsked() {
  static const Asked asked;
  return asked;
}

void ReadBundleRecord(Bytes bytes) {
  static const remote::TenantKeys keys{};
  remote::OpenedRecord opened;
  if (remote::OpenRecord(keys, bytes, TheAsked().wanted(), &opened) != BadBundle::kNone) return;
  remote::BundleRecord asked = TheAsked().record;
  asked.ends = opened.record.ends;  // another host's may be others
  asked.pages = opened.record.pages;
  Expect(opened.record == asked, "a record that is opened is the one that was asked for");
  const std::string body = remote::EncodeBody(opened.record, opened.stripes, opened.sums);
  Expect(remote::EncodeHeader({.seal = opened.seal, .salt = opened.salt}, body.size()) ==
             base::AsText(bytes.first(remote::kRecordHeaderBytes)),
         "a header that is read is written the same");
  Expect(opened.seal != Seal::kChecks ||
             body == base::AsText(bytes.subspan(remote::kRecordHeaderBytes, body.size())),
         "a body that is read is written the same");
  std::vector<std::vector<std::byte>> pages;
  for (const remote::BundlePage& page : opened.record.pages) pages.emplace_back(page.page_bytes);
  const std::vector<std::span<std::byte>> places(pages.begin(), pages.end());
  std::vector<remote::Tag> tags;
  Expect(remote::StripesInto(opened, places, &tags).size() == opened.stripes,
         "a record says how many stripes its pages fill");
}

std::string Checked(Bytes body) {
  base::ByteWriter writer;
  writer.Raw(base::AsBytes(remote::EncodeHeader({.seal = Seal::kChecks}, body.size())));
  writer.Raw(body);
  writer.Fixed(base::Xxh3(base::AsBytes(writer.bytes())));
  return writer.Take();
}

std::string Sealed(Bytes body) {
  const remote::RecordHeader header{.seal = Seal::kAes256Gcm};
  const Asked& asked = TheAsked();
  remote::BundleCipher cipher({}, header.salt,
                              BoundOf(header, asked.record.name, asked.record.formats),
                              remote::BundleCipher::Use::kSeal);
  std::vector<std::byte> sealed(body.size());
  const remote::Tag tag = cipher.Seal(remote::kRecordPart, {&body, 1}, sealed.data());
  base::ByteWriter writer;
  writer.Raw(base::AsBytes(remote::EncodeHeader(header, body.size())));
  writer.Raw(sealed);
  writer.Raw(tag);
  return writer.Take();
}

// As it is, and as a body with its header, its sum and its seal put right.
void Bundle(Bytes input) {
  ReadBundleRecord(input);
  ReadBundleRecord(base::AsBytes(Checked(input)));
  ReadBundleRecord(base::AsBytes(Sealed(input)));
}

std::vector<std::string> BundleSeeds() {
  remote::BundleRecord record = TheAsked().record;
  const std::vector<uint64_t> sums{1, 2};
  const std::string checked = remote::EncodeBody(record, 2, sums);
  const std::string sealed = remote::EncodeBody(record, 2, {});
  std::vector<std::string> seeds{checked, sealed, Checked(base::AsBytes(checked)),
                                 Sealed(base::AsBytes(sealed))};
  record.ends = {3, 16};
  record.pages = {{.group = 0, .rung = 3, .page_bytes = 300'000},
                  {.group = 0, .rung = 9, .page_bytes = 300'000},
                  {.group = 1, .rung = 16, .page_bytes = 300'000}};
  seeds.push_back(remote::EncodeBody(record, 4, {}));
  return seeds;
}

}  // namespace

std::vector<Target> BundleTargets() { return {{"bundles", Bundle, BundleSeeds}}; }

}  // namespace prefixd::fuzz
