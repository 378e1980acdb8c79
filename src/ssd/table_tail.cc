// Source of the layout: RocksDB's block-based table, format version 5 (53-byte footer: kind of
// checksum, handles of the metaindex and of the index, padding, version, magic number; a block is
// followed by its compression and a checksum).
#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "ssd/direct_read.h"

namespace prefixd::ssd {
namespace {

using rocksdb::IOStatus;

constexpr uint64_t kFooterBytes = 53;
constexpr uint64_t kHandlesBytes = 40;
constexpr uint64_t kTrailerBytes = 5;  // of a block
constexpr uint8_t kXxh3 = 4;           // rocksdb::kXXH3, which all our tables use
constexpr uint32_t kFormatVersion = 5;
constexpr uint64_t kVersionBytes = 4 + 8;  // version and magic number, at the end of every version
constexpr uint64_t kMagic = 0x88e241b785f4cff7;
constexpr uint32_t kLastByteFactor = 0x6b9083d9;
constexpr uint64_t kUsualTailBytes = 4096;
constexpr uint64_t kLongestTailBytes = 1 << 20;
constexpr std::string_view kPropertiesName = "rocksdb.properties";

// Place of a block in its file, without the trailer.
struct Handle {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

uint64_t Varint(base::ByteReader* reader) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const uint8_t byte = reader->Fixed<uint8_t>();
    value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) break;
  }
  return value;
}

Handle ReadHandle(base::ByteReader* reader) {
  const uint64_t offset = Varint(reader);
  return {.offset = offset, .bytes = Varint(reader)};
}

// The end of a file, from `offset` on.
struct Tail {
  uint64_t offset = 0;
  std::string bytes;
  std::span<const std::byte> At(uint64_t from, uint64_t count) const {
    if (from < offset || from - offset > bytes.size() || count > bytes.size() - (from - offset))
      return {};
    return base::AsBytes(std::string_view(bytes).substr(from - offset, count));
  }
};

// Returns the block's bytes; nullopt if they are not in the tail or not what was written.
std::optional<std::span<const std::byte>> Verified(const Tail& tail, const Handle& handle) {
  if (handle.bytes > kLongestTailBytes) return std::nullopt;
  const auto stored = tail.At(handle.offset, handle.bytes + kTrailerBytes);
  if (stored.empty()) return std::nullopt;
  base::ByteReader trailer(stored.subspan(handle.bytes));
  const uint8_t compression = trailer.Fixed<uint8_t>();
  const uint32_t sum =
      static_cast<uint32_t>(base::Xxh3(stored.first(handle.bytes))) ^ compression * kLastByteFactor;
  if (compression != 0 || sum != trailer.Fixed<uint32_t>()) return std::nullopt;
  return stored.first(handle.bytes);
}

// Finds the handle of the properties in a verified block of entries that share no prefixes: {0, key
// bytes, value bytes, key, value}. nullopt if there is none.
std::optional<Handle> FindProperties(std::span<const std::byte> metaindex) {
  base::ByteReader entries(metaindex);
  while (entries.ok() && entries.remaining() > 0) {
    const uint64_t shared = Varint(&entries);
    const uint64_t key_bytes = Varint(&entries);
    const uint64_t value_bytes = Varint(&entries);
    const std::string_view key = base::AsText(entries.Raw(key_bytes));
    base::ByteReader value(entries.Raw(value_bytes));
    if (shared != 0 || !entries.ok()) return std::nullopt;
    if (key == kPropertiesName) return ReadHandle(&value);
  }
  return std::nullopt;
}

std::optional<Handle> MetaindexOf(const Tail& tail, uint64_t file_bytes) {
  const auto stored = tail.At(file_bytes - kFooterBytes, kFooterBytes);
  base::ByteReader footer(stored);
  if (footer.Fixed<uint8_t>() != kXxh3) return std::nullopt;
  base::ByteReader handles(footer.Raw(kHandlesBytes));
  const Handle metaindex = ReadHandle(&handles);
  const bool ours =
      footer.Fixed<uint32_t>() == kFormatVersion && footer.Fixed<uint64_t>() == kMagic;
  return ours && footer.ok() ? std::optional(metaindex) : std::nullopt;
}

// One flipped bit makes such a version too. RocksDB looks at the version first: it refuses a
// version that it does not know, and checks the whole footer of one that it knows.
bool IsLater(const Tail& tail, uint64_t file_bytes) {
  base::ByteReader end(tail.At(file_bytes - kVersionBytes, kVersionBytes));
  return end.Fixed<uint32_t>() > kFormatVersion && end.Fixed<uint64_t>() == kMagic;
}

class TableTail {
 public:
  TableTail(rocksdb::FSRandomAccessFile& file, uint64_t file_bytes)
      : file_(file), file_bytes_(file_bytes) {}

  // Reads and verifies the tail, from the properties to the end. Sets `*unknown` and verifies
  // nothing if the format is later than ours.
  IOStatus Load(Tail* tail, bool* unknown) {
    if (file_bytes_ < kFooterBytes) return Bad("is shorter than a footer");
    IOStatus status = ReadFrom(file_bytes_ - std::min(file_bytes_, kUsualTailBytes), tail);
    if (!status.ok() || (*unknown = IsLater(*tail, file_bytes_))) return status;
    const auto metaindex = MetaindexOf(*tail, file_bytes_);
    if (!metaindex) return Bad("has a damaged footer");
    status = Extend(metaindex->offset, tail);
    if (!status.ok()) return status;
    const auto entries = Verified(*tail, *metaindex);
    const auto properties = entries ? FindProperties(*entries) : std::nullopt;
    if (!properties) return Bad("has a damaged metaindex");
    status = Extend(properties->offset, tail);
    if (!status.ok()) return status;
    if (!Verified(*tail, *properties)) return Bad("has damaged properties");
    tail->bytes.erase(0, properties->offset - tail->offset);
    tail->offset = properties->offset;
    return IOStatus::OK();
  }

 private:
  static IOStatus Bad(const char* what) {
    return IOStatus::Corruption(absl::StrCat("table file ", what));
  }
  IOStatus ReadFrom(uint64_t offset, Tail* tail) {
    tail->offset = offset;
    tail->bytes.resize(file_bytes_ - offset);
    rocksdb::Slice read;
    IOStatus status =
        file_.Read(offset, tail->bytes.size(), {}, &read, tail->bytes.data(), nullptr);
    if (!status.ok()) return status;
    if (read.size() != tail->bytes.size()) return Bad("is shorter than the file system says");
    if (read.data() != tail->bytes.data()) tail->bytes.assign(read.data(), read.size());
    return status;
  }
  IOStatus Extend(uint64_t offset, Tail* tail) {
    if (offset >= tail->offset) return IOStatus::OK();
    if (file_bytes_ - offset > kLongestTailBytes) return Bad("has a damaged footer");
    return ReadFrom(offset, tail);
  }

  rocksdb::FSRandomAccessFile& file_;
  const uint64_t file_bytes_;
};

// The callback of ReadAsync. RocksDB 7 gives it a const request, later versions do not.
template <typename Callback>
Callback CallbackOf(IOStatus (rocksdb::FSRandomAccessFile::*)(
    rocksdb::FSReadRequest&, const rocksdb::IOOptions&, Callback, void*, void**,
    rocksdb::IOHandleDeleter*, rocksdb::IODebugContext*));
using ReadDone = decltype(CallbackOf(&rocksdb::FSRandomAccessFile::ReadAsync));

// Answers reads of the tail with the bytes that were verified.
class TailedFile final : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  TailedFile(std::unique_ptr<rocksdb::FSRandomAccessFile> file, Tail tail)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), tail_(std::move(tail)) {}

  IOStatus Read(uint64_t offset, size_t n, const rocksdb::IOOptions& options,
                rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* dbg) const override {
    const IOStatus status =
        FSRandomAccessFileOwnerWrapper::Read(offset, n, options, result, scratch, dbg);
    if (status.ok()) Overlay(offset, result, scratch);
    return status;
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count,
                     const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override {
    const IOStatus status =
        FSRandomAccessFileOwnerWrapper::MultiRead(requests, count, options, dbg);
    for (size_t i = 0; status.ok() && i < count; ++i) {
      if (requests[i].status.ok())
        Overlay(requests[i].offset, &requests[i].result, requests[i].scratch);
    }
    return status;
  }
  IOStatus ReadAsync(rocksdb::FSReadRequest& request, const rocksdb::IOOptions& options,
                     ReadDone done, void* argument, void** handle,
                     rocksdb::IOHandleDeleter* deleter,
                     rocksdb::IODebugContext* dbg) override {  // goes by Read
    return FSRandomAccessFile::ReadAsync(request, options, std::move(done), argument, handle,
                                         deleter, dbg);
  }

 private:
  void Overlay(uint64_t offset, rocksdb::Slice* result, char* scratch) const {
    const uint64_t end = std::min(offset + result->size(), tail_.offset + tail_.bytes.size());
    const uint64_t from = std::max(offset, tail_.offset);
    if (from >= end) return;
    if (result->data() != scratch) {
      std::memcpy(scratch, result->data(), result->size());
      *result = {scratch, result->size()};
    }
    std::memcpy(scratch + (from - offset), tail_.bytes.data() + (from - tail_.offset), end - from);
  }

  const Tail tail_;
};

}  // namespace

rocksdb::IOStatus CheckTail(rocksdb::FileSystem& files, const std::string& path,
                            std::unique_ptr<rocksdb::FSRandomAccessFile>* file, bool* unknown) {
  uint64_t file_bytes = 0;
  IOStatus status = files.GetFileSize(path, {}, &file_bytes, nullptr);
  if (!status.ok()) return status;
  // Opens it without direct I/O, whatever `*file` uses: the tail is a few hundred bytes at the
  // file's end.
  std::unique_ptr<rocksdb::FSRandomAccessFile> plain;
  status = files.NewRandomAccessFile(path, {}, &plain, nullptr);
  if (!status.ok()) return status;
  Tail tail;
  status = TableTail(*plain, file_bytes).Load(&tail, unknown);
  if (!status.ok() || *unknown) return status;
  *file = std::make_unique<TailedFile>(std::move(*file), std::move(tail));
  return status;
}

}  // namespace prefixd::ssd
