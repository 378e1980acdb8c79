#include "remote/record.h"

#include "base/bytes.h"
#include "block/record_fields.h"

namespace prefixd::remote {
namespace {

constexpr size_t kPageBytes = 2 * sizeof(uint32_t) + sizeof(uint64_t);

template <typename T>
void ReadNumbers(base::ByteReader* reader, uint32_t count, std::vector<T>* to) {
  to->reserve(count);
  for (; count > 0; --count) to->push_back(reader->Fixed<T>());
}

void ReadPages(base::ByteReader* reader, std::vector<BundlePage>* pages) {
  pages->resize(block::ReadCount(kPageBytes, reader));
  for (BundlePage& page : *pages) {
    page.group = reader->Fixed<uint32_t>();
    page.rung = reader->Fixed<uint32_t>();
    page.page_bytes = reader->Fixed<uint64_t>();
  }
}

template <typename T>
void WriteNumbers(base::ByteWriter* writer, const std::vector<T>& numbers) {
  writer->Fixed(static_cast<uint32_t>(numbers.size()));
  for (const T number : numbers) writer->Fixed(number);
}

size_t SealBytes(Seal seal) { return seal == Seal::kChecks ? sizeof(uint64_t) : sizeof(Tag); }

}  // namespace

std::string EncodeHeader(const RecordHeader& header, size_t body_bytes) {
  base::ByteWriter writer;
  writer.Fixed(kBundleMagic);
  writer.Fixed(kBundleVersion);
  writer.Fixed(header.seal);
  writer.Fixed(static_cast<uint32_t>(body_bytes));
  writer.Raw(header.salt);
  return writer.Take();
}

BadBundle DecodeHeader(std::span<const std::byte> bytes, RecordHeader* header,
                       std::span<const std::byte>* body) {
  base::ByteReader reader(bytes);
  const auto magic = reader.Fixed<uint32_t>();
  const auto version = reader.Fixed<uint8_t>();
  header->seal = reader.Fixed<Seal>();
  const auto body_bytes = reader.Fixed<uint32_t>();
  header->salt = block::ReadArray<sizeof(Salt)>(&reader);
  if (!reader.ok() || bytes.size() > kMaxRecordBytes) return BadBundle::kShort;
  if (magic != kBundleMagic || version != kBundleVersion || header->seal > Seal::kAes256Gcm) {
    return BadBundle::kVersion;
  }
  if (reader.remaining() != uint64_t{body_bytes} + SealBytes(header->seal)) {
    return BadBundle::kShort;
  }
  *body = reader.Raw(body_bytes);
  return BadBundle::kNone;
}

std::string BoundOf(const RecordHeader& header, const ChainName& name, const std::string& formats) {
  base::ByteWriter writer;
  writer.Fixed(kBundleMagic);
  writer.Fixed(kBundleVersion);
  writer.Fixed(header.seal);
  writer.Raw(header.salt);
  writer.Raw(name);
  writer.Framed(formats);
  return writer.Take();
}

std::string EncodeBody(const BundleRecord& record, uint32_t stripes,
                       std::span<const uint64_t> sums) {
  base::ByteWriter writer;
  writer.Fixed(record.generation);
  writer.Raw(record.space);
  writer.Raw(record.name);
  writer.Raw(record.parent);
  writer.Fixed(record.first_token);
  writer.Framed(record.formats);
  block::WriteTokens(record.tokens, &writer);
  block::WriteContent(record.content, &writer);
  WriteNumbers(&writer, record.ends);
  writer.Fixed(static_cast<uint32_t>(record.pages.size()));
  for (const BundlePage& page : record.pages) {
    writer.Fixed(page.group);
    writer.Fixed(page.rung);
    writer.Fixed(page.page_bytes);
  }
  writer.Fixed(stripes);
  for (const uint64_t sum : sums) writer.Fixed(sum);
  return writer.Take();
}

bool DecodeBody(std::span<const std::byte> body, OpenedRecord* opened) {
  base::ByteReader reader(body);
  BundleRecord& record = opened->record;
  record.generation = reader.Fixed<uint64_t>();
  record.space = block::ReadArray<sizeof(block::SpaceId)>(&reader);
  record.name = block::ReadArray<sizeof(ChainName)>(&reader);
  record.parent = block::ReadArray<sizeof(ChainName)>(&reader);
  record.first_token = reader.Fixed<uint32_t>();
  record.formats = reader.Framed();
  record.tokens = block::ReadTokens(&reader);
  record.content = block::ReadContent(&reader);
  ReadNumbers(&reader, block::ReadCount(sizeof(uint32_t), &reader), &record.ends);
  ReadPages(&reader, &record.pages);
  opened->stripes = reader.Fixed<uint32_t>();
  if (opened->seal == Seal::kChecks) {
    if (opened->stripes > reader.remaining() / sizeof(uint64_t)) return false;
    ReadNumbers(&reader, opened->stripes, &opened->sums);
  }
  return reader.ok() && reader.remaining() == 0;
}

}  // namespace prefixd::remote
