#include "page_chunk.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace prefixd::client {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
constexpr uint32_t kReadyField = 1, kPageField = 2;                  // of FetchChunk
constexpr uint32_t kXxh3Field = 7, kSeedField = 8, kDataField = 15;  // of PageBytes
constexpr int kMostVarintBytes = 10;

void AddVarint(uint64_t value, std::string* to) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<char>(value | 0x80));
  to->push_back(static_cast<char>(value));
}

void AddField(uint32_t field, uint64_t value, std::string* to) {
  if (value == 0) return;  // proto3 leaves zeros out
  AddVarint(field << 3 | kVarint, to);
  AddVarint(value, to);
}

}  // namespace

// Reads forward over slices. A read past the end makes ok() false for good.
class SliceCursor {
 public:
  explicit SliceCursor(const std::vector<grpc::Slice>& slices) : slices_(&slices) { Settle(); }

  bool ok() const { return ok_; }
  bool at_end() const { return slice_ == slices_->size(); }
  size_t slice() const { return slice_; }
  size_t at() const { return at_; }
  uint64_t position() const { return position_; }

  uint64_t Varint() {
    uint64_t value = 0;
    for (int i = 0; i < kMostVarintBytes; ++i) {
      std::byte byte{0x80};
      Read(&byte, 1);
      if (!ok_) return 0;
      value |= static_cast<uint64_t>(byte & std::byte{0x7f}) << (7 * i);
      if ((byte & std::byte{0x80}) == std::byte{0}) return value;
    }
    ok_ = false;
    return 0;
  }
  uint64_t Fixed64() {
    uint64_t value = 0;
    Read(reinterpret_cast<std::byte*>(&value), sizeof(value));
    return value;
  }
  // Passes over the bytes if `to` is null.
  void Read(std::byte* to, uint64_t bytes) {
    while (bytes > 0 && !at_end()) {
      const grpc::Slice& slice = (*slices_)[slice_];
      const uint64_t step = std::min<uint64_t>(bytes, slice.size() - at_);
      if (to != nullptr) {
        std::memcpy(to, slice.begin() + at_, step);
        to += step;
      }
      bytes -= step;
      at_ += step;
      position_ += step;
      Settle();
    }
    if (bytes > 0) ok_ = false;
  }
  void Skip(uint32_t wire_type) {
    switch (wire_type) {
      case kVarint:
        Varint();
        break;
      case kFixed64:
        Read(nullptr, 8);
        break;
      case kBytes:
        Read(nullptr, Varint());
        break;
      case kFixed32:
        Read(nullptr, 4);
        break;
      default:
        ok_ = false;
    }
  }

 private:
  void Settle() {
    while (slice_ < slices_->size() && at_ == (*slices_)[slice_].size()) {
      ++slice_;
      at_ = 0;
    }
  }

  const std::vector<grpc::Slice>* slices_;
  size_t slice_ = 0, at_ = 0;
  uint64_t position_ = 0;
  bool ok_ = true;
};

bool FetchedChunk::Parse(const grpc::ByteBuffer& bytes) {
  is_page_ = false;
  piece_ = {};
  ready_.Clear();
  slices_.clear();
  if (!bytes.Dump(&slices_).ok()) return false;
  SliceCursor cursor(slices_);
  while (cursor.ok() && !cursor.at_end()) {
    const uint64_t tag = cursor.Varint();
    const uint64_t field = tag >> 3, type = tag & 7;
    if (type != kBytes || (field != kReadyField && field != kPageField)) {
      cursor.Skip(static_cast<uint32_t>(type));
      continue;
    }
    const uint64_t length = cursor.Varint();
    is_page_ = field == kPageField;
    if (is_page_) {
      if (!ParsePiece(cursor, length)) return false;
      cursor.Read(nullptr, length);
    } else {
      if (length > bytes.Length()) return false;
      std::string text(length, '\0');
      cursor.Read(reinterpret_cast<std::byte*>(text.data()), length);
      if (!cursor.ok() || !ready_.ParseFromString(text)) return false;
    }
  }
  return cursor.ok();
}

bool FetchedChunk::ParsePiece(SliceCursor cursor, uint64_t bytes) {
  piece_ = {};
  const uint64_t end = cursor.position() + bytes;
  if (end < bytes) return false;
  while (cursor.ok() && cursor.position() < end) {
    const uint64_t tag = cursor.Varint();
    const uint64_t field = tag >> 3;
    const auto type = static_cast<uint32_t>(tag & 7);
    if (field == kDataField && type == kBytes) {
      piece_.data_bytes = cursor.Varint();
      data_slice_ = cursor.slice();
      data_at_ = cursor.at();
      cursor.Read(nullptr, piece_.data_bytes);
    } else if (field == kXxh3Field && type == kFixed64) {
      piece_.xxh3 = cursor.Fixed64();
    } else if (field == kSeedField && type == kFixed64) {
      piece_.sum_seed = cursor.Fixed64();
    } else if (field >= 1 && field <= 6 && type == kVarint) {
      const uint64_t value = cursor.Varint();
      uint32_t* const narrow[] = {&piece_.group, &piece_.first_token, &piece_.tokens, &piece_.rung};
      if (field <= 4) *narrow[field - 1] = static_cast<uint32_t>(value);
      if (field == 5) piece_.page_bytes = value;
      if (field == 6) piece_.offset = value;
    } else {
      cursor.Skip(type);
    }
  }
  return cursor.ok() && cursor.position() == end;
}

grpc::ByteBuffer MakePutChunk(const PieceHeader& piece, const PageMemory& page, uint64_t at) {
  std::string fields;
  AddField(1, piece.group, &fields);
  AddField(2, piece.first_token, &fields);
  AddField(3, piece.tokens, &fields);
  AddField(4, piece.rung, &fields);
  AddField(5, piece.page_bytes, &fields);
  AddField(6, piece.offset, &fields);
  AddVarint(kXxh3Field << 3 | kFixed64, &fields);
  fields.append(reinterpret_cast<const char*>(&piece.xxh3), sizeof(piece.xxh3));
  if (piece.sum_seed != 0) {
    AddVarint(kSeedField << 3 | kFixed64, &fields);
    fields.append(reinterpret_cast<const char*>(&piece.sum_seed), sizeof(piece.sum_seed));
  }
  AddVarint(kDataField << 3 | kBytes, &fields);
  AddVarint(piece.data_bytes, &fields);
  std::string head;
  AddVarint(kPageField << 3 | kBytes, &head);
  AddVarint(fields.size() + piece.data_bytes, &head);
  head += fields;
  auto* holder = new PageMemory(page);
  const grpc::Slice slices[] = {
      grpc::Slice(head), grpc::Slice(
                             page.get() + at, piece.data_bytes,
                             [](void* held) { delete static_cast<PageMemory*>(held); }, holder)};
  return {slices, 2};
}

}  // namespace prefixd::client
