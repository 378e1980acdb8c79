#include "wire/page.h"

#include <array>
#include <cstring>

#include "wire/fields.h"
#include "wire/limits.h"

namespace prefixd::wire {
namespace {

static_assert(v1::FetchChunk::kPageFieldNumber == 2 && v1::PutChunk::kPageFieldNumber == 2);

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2 };
constexpr uint32_t Tag(uint32_t field, WireType type) { return field << 3 | type; }
constexpr uint32_t kPageTag = Tag(v1::FetchChunk::kPageFieldNumber, kBytes);
constexpr uint32_t kSumTag = Tag(v1::PageBytes::kXxh3FieldNumber, kFixed64);
constexpr uint32_t kSeedTag = Tag(v1::PageBytes::kSumSeedFieldNumber, kFixed64);
constexpr uint32_t kDataTag = Tag(v1::PageBytes::kDataFieldNumber, kBytes);

std::byte* PutVarint(uint64_t value, std::byte* to) {
  for (; value >= 0x80; value >>= 7) *to++ = static_cast<std::byte>(value | 0x80);
  *to++ = static_cast<std::byte>(value);
  return to;
}

// Leaves out zero, as proto3 does.
std::byte* PutNumber(uint32_t field, uint64_t value, std::byte* to) {
  return value == 0 ? to : PutVarint(value, PutVarint(Tag(field, kVarint), to));
}

std::byte* PutFixed64(uint32_t tag, uint64_t value, std::byte* to) {
  if (value == 0) return to;
  to = PutVarint(tag, to);
  std::memcpy(to, &value, sizeof(value));  // little-endian, as this machine is
  return to + sizeof(value);
}

// A place in the first bytes of a message. Once a read goes past them, ok() is false for good.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t at() const { return at_; }
  bool ok() const { return ok_; }
  // Every tag of a piece has one byte.
  uint64_t Tag() {
    ok_ = ok_ && at_ < bytes_.size();
    return ok_ ? static_cast<uint64_t>(bytes_[at_++]) : 0;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) break;
      const auto byte = static_cast<uint64_t>(bytes_[at_++]);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  uint64_t Fixed64() {
    uint64_t value = 0;
    ok_ = ok_ && bytes_.size() - at_ >= sizeof(value);
    if (!ok_) return 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));  // little-endian, as this machine is
    at_ += sizeof(value);
    return value;
  }

 private:
  const std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

// Returns false for a tag that is no number of a piece.
bool ReadNumber(uint64_t tag, Cursor* in, PieceHeader* header) {
  switch (tag) {
    case Tag(v1::PageBytes::kGroupFieldNumber, kVarint):
      header->group = static_cast<uint32_t>(in->Varint());  // cut to 32 bits as protobuf does
      return true;
    case Tag(v1::PageBytes::kFirstTokenFieldNumber, kVarint):
      header->first_token = static_cast<uint32_t>(in->Varint());
      return true;
    case Tag(v1::PageBytes::kTokensFieldNumber, kVarint):
      header->tokens = static_cast<uint32_t>(in->Varint());
      return true;
    case Tag(v1::PageBytes::kRungFieldNumber, kVarint):
      header->rung = static_cast<uint32_t>(in->Varint());
      return true;
    case Tag(v1::PageBytes::kPageBytesFieldNumber, kVarint):
      header->page_bytes = in->Varint();
      return true;
    case Tag(v1::PageBytes::kOffsetFieldNumber, kVarint):
      header->offset = in->Varint();
      return true;
    case kSumTag:
      header->xxh3 = in->Fixed64();
      return true;
    case kSeedTag:
      header->sum_seed = in->Fixed64();
      return true;
    default:
      return false;
  }
}

}  // namespace

absl::Status CheckPiece(const PieceHeader& piece) {
  const uint64_t bytes = piece.data_bytes;
  if (bytes == 0) return absl::InvalidArgumentError("page: data has 0 bytes, wants at least 1");
  PREFIXD_RETURN_IF_ERROR(CheckLength("page: data", bytes, kMaxPieceBytes));
  if (piece.offset > piece.page_bytes || bytes > piece.page_bytes - piece.offset) {
    return absl::InvalidArgumentError(absl::StrCat("page: data of ", bytes, " bytes at offset ",
                                                   piece.offset, " reaches past page_bytes ",
                                                   piece.page_bytes));
  }
  return absl::OkStatus();
}

size_t WritePieceHeader(const PieceHeader& piece, std::byte* to) {
  std::array<std::byte, kMaxPieceHeaderBytes> fields;
  std::byte* end = fields.data();
  end = PutNumber(v1::PageBytes::kGroupFieldNumber, piece.group, end);
  end = PutNumber(v1::PageBytes::kFirstTokenFieldNumber, piece.first_token, end);
  end = PutNumber(v1::PageBytes::kTokensFieldNumber, piece.tokens, end);
  end = PutNumber(v1::PageBytes::kRungFieldNumber, piece.rung, end);
  end = PutNumber(v1::PageBytes::kPageBytesFieldNumber, piece.page_bytes, end);
  end = PutNumber(v1::PageBytes::kOffsetFieldNumber, piece.offset, end);
  end = PutFixed64(kSumTag, piece.xxh3, end);
  end = PutFixed64(kSeedTag, piece.sum_seed, end);
  end = PutVarint(piece.data_bytes, PutVarint(kDataTag, end));
  const auto bytes = static_cast<size_t>(end - fields.data());
  std::byte* const body = PutVarint(bytes + piece.data_bytes, PutVarint(kPageTag, to));
  std::memcpy(body, fields.data(), bytes);
  return static_cast<size_t>(body - to) + bytes;
}

std::optional<ParsedPiece> ReadPieceHeader(std::span<const std::byte> start,
                                           uint64_t message_bytes) {
  Cursor in(start);
  if (in.Tag() != kPageTag || in.Varint() != message_bytes - in.at() || !in.ok())
    return std::nullopt;
  ParsedPiece parsed;
  for (;;) {
    const uint64_t tag = in.Tag();
    if (!in.ok()) return std::nullopt;
    if (tag != kDataTag) {
      if (!ReadNumber(tag, &in, &parsed.header)) return std::nullopt;
      continue;
    }
    parsed.header.data_bytes = in.Varint();
    if (!in.ok() || parsed.header.data_bytes != message_bytes - in.at()) return std::nullopt;
    parsed.header_bytes = in.at();
    return parsed;
  }
}

PieceHeader HeaderOf(const v1::PageBytes& page) {
  return {.group = page.group(),
          .first_token = page.first_token(),
          .tokens = page.tokens(),
          .rung = page.rung(),
          .page_bytes = page.page_bytes(),
          .offset = page.offset(),
          .xxh3 = page.xxh3(),
          .sum_seed = page.sum_seed(),
          .data_bytes = page.data().size()};
}

}  // namespace prefixd::wire
