#include "cache/store/record.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/status.h"
#include "block/record_fields.h"

namespace prefixd::cache {
namespace {

constexpr size_t kPageBytes = 3 * sizeof(uint32_t) + 4 * sizeof(uint64_t);

void ReadPages(base::ByteReader* reader, std::vector<index::RestoredPage>* pages) {
  pages->resize(block::ReadCount(kPageBytes, reader));
  for (index::RestoredPage& page : *pages) {
    page.group = reader->Fixed<uint32_t>();
    page.rung = reader->Fixed<uint32_t>();
    page.tokens = reader->Fixed<uint32_t>();
    page.page_bytes = reader->Fixed<uint64_t>();
    page.payload_bytes = reader->Fixed<uint64_t>();
    page.check = reader->Fixed<uint64_t>();
    page.ssd_sequence = reader->Fixed<uint64_t>();
  }
}

}  // namespace

std::string EncodeRecord(const BlockRecord& record) {
  const index::RestoredBlock& block = record.block;
  base::ByteWriter writer;
  writer.Fixed(kRecordMagic);
  writer.Fixed(kRecordVersion);
  writer.Raw(record.space);
  writer.Raw(block.hash);
  writer.Raw(block.parent);
  writer.Fixed(block.serials.own);
  writer.Fixed(block.serials.parent);
  writer.Fixed(static_cast<uint32_t>(block.other_serials.size()));
  for (const uint64_t serial : block.other_serials) writer.Fixed(serial);
  writer.Fixed(record.first_token);
  block::WriteTokens(block.tokens, &writer);
  block::WriteContent(block.content, &writer);
  writer.Fixed(static_cast<uint32_t>(block.ends.size()));
  for (uint32_t end : block.ends) writer.Fixed(end);
  writer.Fixed(record.last_use);
  writer.Fixed(static_cast<uint32_t>(block.pages.size()));
  for (const index::RestoredPage& page : block.pages) {
    writer.Fixed(page.group);
    writer.Fixed(page.rung);
    writer.Fixed(page.tokens);
    writer.Fixed(page.page_bytes);
    writer.Fixed(page.payload_bytes);
    writer.Fixed(page.check);
    writer.Fixed(page.ssd_sequence);
  }
  writer.Fixed(base::Xxh3(base::AsBytes(writer.bytes())));
  return writer.Take();
}

uint64_t MemoryOf(const index::RestoredBlock& block) {
  constexpr uint64_t kAllocation = 16;
  return sizeof(block) + 3 * kAllocation + block.tokens.capacity() * sizeof(block::Token) +
         block.content.capacity() * sizeof(block::ContentKey) +
         (block.ends.capacity() + 2 * block.other_serials.capacity()) * sizeof(uint32_t) +
         block.pages.capacity() * sizeof(index::RestoredPage);
}

absl::StatusOr<BlockRecord> DecodeRecord(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(uint64_t))
    return absl::DataLossError("record: shorter than its checksum");
  const std::span<const std::byte> body = bytes.first(bytes.size() - sizeof(uint64_t));
  base::ByteReader tail(bytes.subspan(body.size()));
  if (tail.Fixed<uint64_t>() != base::Xxh3(body))
    return absl::DataLossError("record: checksum differs");
  base::ByteReader reader(body);
  const auto magic = reader.Fixed<uint32_t>();
  const auto version = reader.Fixed<uint32_t>();
  if (magic != kRecordMagic || version != kRecordVersion) {
    return absl::DataLossError(
        absl::StrCat("record: version ", version, ", this program reads ", kRecordVersion));
  }
  BlockRecord record;
  record.space = block::ReadArray<32>(&reader);
  record.block.hash = block::ReadArray<16>(&reader);
  record.block.parent = block::ReadArray<16>(&reader);
  record.block.serials.own = reader.Fixed<uint64_t>();
  record.block.serials.parent = reader.Fixed<uint64_t>();
  for (uint32_t i = block::ReadCount(sizeof(uint64_t), &reader); i > 0; --i) {
    record.block.other_serials.push_back(reader.Fixed<uint64_t>());
  }
  record.first_token = reader.Fixed<uint32_t>();
  record.block.tokens = block::ReadTokens(&reader);
  record.block.content = block::ReadContent(&reader);
  for (uint32_t i = block::ReadCount(sizeof(uint32_t), &reader); i > 0; --i) {
    record.block.ends.push_back(reader.Fixed<uint32_t>());
  }
  record.last_use = reader.Fixed<int64_t>();
  ReadPages(&reader, &record.block.pages);
  if (!reader.ok() || reader.remaining() != 0)
    return absl::DataLossError("record: lengths do not add up");
  return record;
}

}  // namespace prefixd::cache
