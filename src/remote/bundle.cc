#include "remote/bundle.h"

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "block/page_layout.h"
#include "remote/bundle_cipher.h"
#include "remote/record.h"
#include "remote/sealed_record.h"
#include "remote/stripes.h"

namespace prefixd::remote {
namespace {

bool AscendsWithin(const std::vector<uint32_t>& ends, size_t tokens) {
  uint32_t last = 0;
  for (const uint32_t end : ends) {
    if (end <= last || end > tokens) return false;
    last = end;
  }
  return true;
}

bool Exists(const BundlePage& page, std::span<const block::LayerGroup> groups, uint32_t tokens) {
  if (page.group >= groups.size() || tokens == 0) return false;
  const block::LayerGroup& group = groups[page.group];
  const bool has_rung = group.kind == block::LayerKind::kState
                            ? page.rung >= 1 && page.rung <= tokens
                            : page.rung < group.ladder.size();
  return has_rung && page.page_bytes == block::LayoutOfPage(group, page.rung, tokens).page_bytes;
}

bool HasLayout(const BundleRecord& record, std::span<const block::LayerGroup> groups) {
  uint64_t total = 0;
  const BundlePage* before = nullptr;
  for (const BundlePage& page : record.pages) {
    if (!Exists(page, groups, static_cast<uint32_t>(record.tokens.size()))) return false;
    if (before != nullptr &&
        std::pair(before->group, before->rung) >= std::pair(page.group, page.rung)) {
      return false;
    }
    before = &page;
    total += page.page_bytes;
    if (total > kMaxBundleBytes) return false;
  }
  return total > 0;
}

BadBundle Compare(const BundleRecord& record, const Wanted& wanted) {
  if (record.space != wanted.space) return BadBundle::kSpace;
  if (record.generation != wanted.generation) return BadBundle::kGeneration;
  if (record.name != wanted.name || record.parent != wanted.parent ||
      record.formats != wanted.formats) {
    return BadBundle::kName;
  }
  if (record.first_token != wanted.first_token ||
      !std::ranges::equal(record.tokens, wanted.block.tokens) ||
      !AscendsWithin(record.ends, record.tokens.size())) {
    return BadBundle::kTokens;
  }
  if (!std::ranges::equal(record.content, wanted.block.content)) return BadBundle::kContent;
  return HasLayout(record, wanted.groups) ? BadBundle::kNone : BadBundle::kLayout;
}

uint64_t PayloadOf(const BundleRecord& record) {
  uint64_t bytes = 0;
  for (const BundlePage& page : record.pages) bytes += page.page_bytes;
  return bytes;
}

bool HaveSums(const std::vector<Runs>& stripes, const std::vector<uint64_t>& sums) {
  base::Xxh3Stream sum;
  for (size_t i = 0; i < stripes.size(); ++i) {
    for (const std::span<std::byte> run : stripes[i]) sum.Update(run);
    if (sum.Finish() != sums[i]) return false;
  }
  return true;
}

}  // namespace

const char* NameOf(BadBundle bad) {
  switch (bad) {
    case BadBundle::kNone:
      return "none";
    case BadBundle::kShort:
      return "short";
    case BadBundle::kVersion:
      return "version";
    case BadBundle::kSeal:
      return "seal";
    case BadBundle::kInsecure:
      return "insecure";
    case BadBundle::kSpace:
      return "space";
    case BadBundle::kGeneration:
      return "generation";
    case BadBundle::kName:
      return "name";
    case BadBundle::kTokens:
      return "tokens";
    case BadBundle::kContent:
      return "content";
    case BadBundle::kLayout:
      return "layout";
  }
  return "unknown";
}

BadBundle OpenRecord(const TenantKeys& keys, std::span<const std::byte> bytes, const Wanted& wanted,
                     OpenedRecord* opened) {
  RecordHeader header;
  std::span<const std::byte> body;
  BadBundle bad = DecodeHeader(bytes, &header, &body);
  if (bad != BadBundle::kNone) return bad;
  if (header.seal < wanted.least) return BadBundle::kInsecure;
  OpenedRecord read{.seal = header.seal, .salt = header.salt};
  std::vector<std::byte> plain;
  if (!OpenBody(keys, bytes, header, body, BoundOf(header, wanted.name, wanted.formats), &plain)) {
    return BadBundle::kSeal;
  }
  if (!DecodeBody(plain, &read)) return BadBundle::kShort;
  bad = Compare(read.record, wanted);
  if (bad != BadBundle::kNone) return bad;
  if (read.stripes != StripesOf(PayloadOf(read.record))) return BadBundle::kShort;
  *opened = std::move(read);
  return BadBundle::kNone;
}

std::vector<Runs> StripesInto(const OpenedRecord& opened,
                              std::span<const std::span<std::byte>> pages, std::vector<Tag>* tags) {
  std::vector<Runs> stripes = CutStripes(pages);
  tags->resize(opened.seal == Seal::kAes256Gcm ? stripes.size() : 0);
  for (size_t i = 0; i < tags->size(); ++i) stripes[i].push_back((*tags)[i]);
  return stripes;
}

bool OpenPages(const TenantKeys& keys, const OpenedRecord& opened,
               std::span<const std::span<std::byte>> pages, std::span<const Tag> tags) {
  const std::vector<Runs> stripes = CutStripes(pages);
  if (stripes.size() != opened.stripes) return false;
  if (opened.seal == Seal::kChecks) return HaveSums(stripes, opened.sums);
  if (stripes.size() != tags.size()) return false;
  const RecordHeader header{.seal = opened.seal, .salt = opened.salt};
  BundleCipher cipher(keys, opened.salt, BoundOf(header, opened.record.name, opened.record.formats),
                      BundleCipher::Use::kOpen);
  for (uint32_t i = 0; i < opened.stripes; ++i) {
    if (!cipher.Open(StripePart(i, opened.stripes), stripes[i], tags[i])) return false;
  }
  return true;
}

}  // namespace prefixd::remote
