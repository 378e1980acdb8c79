#include "block/record_fields.h"

namespace prefixd::block {
void WriteTokens(std::span<const Token> tokens, base::ByteWriter* writer) {
  writer->Fixed(static_cast<uint32_t>(tokens.size()));
  writer->Raw(std::as_bytes(tokens));
}

void WriteContent(std::span<const ContentKey> content, base::ByteWriter* writer) {
  writer->Fixed(static_cast<uint32_t>(content.size()));
  for (const ContentKey& key : content) {
    writer->Fixed(key.start);
    writer->Fixed(key.item_offset);
    writer->Fixed(key.length);
    writer->Raw(key.digest);
  }
}

uint32_t ReadCount(size_t item_bytes, base::ByteReader* reader) {
  const auto count = reader->Fixed<uint32_t>();
  if (count > reader->remaining() / item_bytes) reader->Raw(reader->remaining() + 1);
  return reader->ok() ? count : 0;
}

std::vector<Token> ReadTokens(base::ByteReader* reader) {
  std::vector<Token> tokens(ReadCount(sizeof(Token), reader));
  std::ranges::copy(reader->Raw(tokens.size() * sizeof(Token)),
                    std::as_writable_bytes(std::span(tokens)).begin());
  return tokens;
}

std::vector<ContentKey> ReadContent(base::ByteReader* reader) {
  std::vector<ContentKey> content(ReadCount(kContentKeyBytes, reader));
  for (ContentKey& key : content) {
    key.start = reader->Fixed<uint32_t>();
    key.item_offset = reader->Fixed<uint32_t>();
    key.length = reader->Fixed<uint32_t>();
    key.digest = ReadArray<sizeof(base::Digest256)>(reader);
  }
  return content;
}

}  // namespace prefixd::block
