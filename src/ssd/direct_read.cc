#include "ssd/direct_read.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/bytes.h"

namespace prefixd::ssd {
namespace {

constexpr size_t kMaxOpened = 64;   // files, with their notes
constexpr size_t kIdleBuffers = 4;  // as many as threads read at once
constexpr size_t kBufferAlignment = 4096;
constexpr size_t kKeySuffixBytes = 8;  // RocksDB adds them to a key
// What stands behind the one value of a block: one restart, the count of restarts, the kind of
// compression, the checksum.
constexpr uint64_t kBlockTailBytes = 4 + 4 + 1 + 4;
constexpr int kGapShift = 56;
constexpr uint64_t kMaxOffset = (uint64_t{1} << kGapShift) - 1;

uint64_t VarintBytes(uint64_t value) {
  uint64_t bytes = 1;
  for (; value >= 128; value >>= 7) ++bytes;
  return bytes;
}

std::vector<PagePlace> PlacesOf(const TableDb& table_db, uint64_t last_sequence) {
  std::string marker;
  const rocksdb::Status status = table_db.db->Get(table_db.read_options(), table_db.records,
                                                  SequenceKey(last_sequence), &marker);
  uint64_t records = 0;
  std::vector<PagePlace> places;
  if (!status.ok() || !DecodeClosingMarker(marker, &records, &places)) return {};
  return places;
}

std::unique_ptr<rocksdb::FSRandomAccessFile> OpenFile(const TableDb& table_db,
                                                      const std::string& path) {
  rocksdb::FileOptions options;
  options.use_direct_reads = table_db.direct_io;
  std::unique_ptr<rocksdb::FSRandomAccessFile> file;
  const rocksdb::IOStatus status =
      table_db.db->GetEnv()->GetFileSystem()->NewRandomAccessFile(path, options, &file, nullptr);
  return status.ok() ? std::move(file) : nullptr;
}

}  // namespace

std::string EncodeClosingMarker(uint64_t records, std::span<const PagePlace> places) {
  base::ByteWriter writer;
  writer.Fixed(records);
  for (const PagePlace& place : places) {
    writer.Fixed(place.sequence);
    writer.Fixed(place.offset | uint64_t{place.gap_bytes} << kGapShift);
  }
  return writer.Take();
}

bool DecodeClosingMarker(const std::string& value, uint64_t* records,
                         std::vector<PagePlace>* places) {
  constexpr size_t kNoteBytes = 2 * sizeof(uint64_t);
  if (value.size() < sizeof(uint64_t) || (value.size() - sizeof(uint64_t)) % kNoteBytes != 0)
    return false;
  base::ByteReader reader(base::AsBytes(value));
  *records = reader.Fixed<uint64_t>();
  places->resize((value.size() - sizeof(uint64_t)) / kNoteBytes);
  for (PagePlace& place : *places) {
    place.sequence = reader.Fixed<uint64_t>();
    const uint64_t offset_and_gap = reader.Fixed<uint64_t>();
    place.offset = offset_and_gap & kMaxOffset;
    place.gap_bytes = static_cast<uint8_t>(offset_and_gap >> kGapShift);
  }
  return std::ranges::is_sorted(*places, {}, &PagePlace::sequence);
}

// An entry is three lengths, of the key's shared part (0), of its rest and of the value, then the
// key, then the value.
EntryPlaces::Place EntryPlaces::Next(uint64_t key_bytes, uint64_t value_bytes) {
  const uint64_t whole_key = key_bytes + kKeySuffixBytes;
  const uint64_t key = next_block_ + 1 + VarintBytes(whole_key) + VarintBytes(value_bytes);
  next_block_ = key + whole_key + value_bytes + kBlockTailBytes;
  return {.key = key, .value = key + whole_key};
}

DirectReads::Buffer::~Buffer() { std::free(data); }

void DirectReads::Set(const std::vector<SegmentInfo>& segments,
                      const std::map<uint64_t, std::string>& paths) {
  {
    base::MutexLock lock(mutex_);
    segments_.clear();
    opened_ = 0;
  }
  for (const SegmentInfo& segment : segments) {
    const auto found = paths.find(segment.first_sequence);
    if (found != paths.end()) Add(segment, found->second);
  }
}

void DirectReads::Add(const SegmentInfo& segment, const std::string& path) {
  if (path.empty()) return;
  base::MutexLock lock(mutex_);
  segments_[segment.first_sequence] = {.last_sequence = segment.last_sequence, .path = path};
}

void DirectReads::Drop(const SegmentInfo& segment) {
  base::MutexLock lock(mutex_);
  const auto found = segments_.find(segment.first_sequence);
  if (found == segments_.end()) return;
  opened_ -= found->second.opened != nullptr;
  segments_.erase(found);
}

void DirectReads::CloseColdest() {
  while (opened_ > kMaxOpened) {
    auto coldest = segments_.end();
    for (auto at = segments_.begin(); at != segments_.end(); ++at) {
      if (at->second.opened == nullptr) continue;
      if (coldest == segments_.end() || at->second.used < coldest->second.used) coldest = at;
    }
    coldest->second.opened.reset();
    --opened_;
  }
}

DirectReads::Segment* DirectReads::Around(uint64_t sequence) {
  auto next = segments_.upper_bound(sequence);
  if (next == segments_.begin()) return nullptr;
  Segment& before = std::prev(next)->second;
  return sequence <= before.last_sequence ? &before : nullptr;
}

bool DirectReads::LeaveToRocksDb(uint64_t sequence) {
  base::MutexLock lock(mutex_);
  Segment* const segment = Around(sequence);
  if (segment == nullptr || std::exchange(segment->left_to_rocksdb, true)) return false;
  opened_ -= segment->opened != nullptr;
  segment->opened.reset();
  return true;
}

std::shared_ptr<const DirectReads::Opened> DirectReads::OpenedFor(const TableDb& table_db,
                                                                  uint64_t sequence) {
  Segment segment;
  {
    base::MutexLock lock(mutex_);
    Segment* const found = Around(sequence);
    if (found == nullptr || found->left_to_rocksdb) return nullptr;
    found->used = ++stamp_;
    if (found->opened != nullptr) return found->opened;
    segment = *found;
  }
  auto opened = std::make_shared<Opened>();
  opened->places = PlacesOf(table_db, segment.last_sequence);
  if (!opened->places.empty()) opened->file = OpenFile(table_db, segment.path);
  base::MutexLock lock(mutex_);
  Segment* const found = Around(sequence);
  if (found == nullptr || found->path != segment.path) return opened;
  opened_ += found->opened == nullptr;
  found->opened = opened;
  CloseColdest();
  return opened;
}

std::unique_ptr<DirectReads::Buffer> DirectReads::TakeBuffer(size_t bytes) {
  base::MutexLock lock(mutex_);
  const auto fits = std::ranges::find_if(
      buffers_, [bytes](const std::unique_ptr<Buffer>& buffer) { return buffer->bytes >= bytes; });
  if (fits != buffers_.end()) {
    std::unique_ptr<Buffer> buffer = std::move(*fits);
    buffers_.erase(fits);
    return buffer;
  }
  auto buffer = std::make_unique<Buffer>();
  buffer->bytes = (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  buffer->data = static_cast<std::byte*>(std::aligned_alloc(kBufferAlignment, buffer->bytes));
  if (buffer->data == nullptr) return nullptr;
  buffer_bytes_ += buffer->bytes;
  return buffer;
}

void DirectReads::GiveBack(std::unique_ptr<Buffer> buffer) {
  base::MutexLock lock(mutex_);
  buffers_.push_back(std::move(buffer));
  if (buffers_.size() <= kIdleBuffers) return;
  buffer_bytes_ -= buffers_.front()->bytes;
  buffers_.erase(buffers_.begin());
}

DirectReads::Result DirectReads::Read(const TableDb& table_db, uint64_t sequence,
                                      const block::PageName& name, uint64_t check,
                                      std::span<std::byte> page) {
  if (page.size() < kSmallestNotedPage) return Result::kNone;
  const std::shared_ptr<const Opened> opened = OpenedFor(table_db, sequence);
  if (opened == nullptr || opened->file == nullptr) return Result::kNone;
  const auto place = std::ranges::lower_bound(opened->places, sequence, {}, &PagePlace::sequence);
  if (place == opened->places.end() || place->sequence != sequence) return Result::kNone;

  const uint64_t alignment = opened->file->GetRequiredBufferAlignment();
  const uint64_t begin = place->offset / alignment * alignment;
  const uint64_t skip = place->offset - begin;
  const uint64_t page_at = skip + sizeof(block::PageHeader) + place->gap_bytes;
  const uint64_t wanted = page_at + page.size();
  const uint64_t bytes = (wanted + alignment - 1) / alignment * alignment;
  std::unique_ptr<Buffer> buffer = TakeBuffer(bytes);
  if (buffer == nullptr) return Result::kNone;
  rocksdb::Slice read;
  const rocksdb::IOStatus status = opened->file->Read(
      begin, bytes, rocksdb::IOOptions(), &read, reinterpret_cast<char*>(buffer->data), nullptr);
  // The page goes into the arena; the page cache need not have it too.
  if (!table_db.direct_io) opened->file->InvalidateCache(begin, bytes).PermitUncheckedError();
  Result result = Result::kNone;
  if (status.ok() && read.size() >= wanted) {
    const auto* bytes_read = reinterpret_cast<const std::byte*>(read.data());
    const std::span<const std::byte> from(bytes_read + page_at, page.size());
    const block::PageHeader header = block::MakePageHeader(name, page, check);
    if (std::memcmp(bytes_read + skip, &header, sizeof(header)) != 0) {
      result = Result::kElsewhere;
    } else if (block::CopyAndCheck(name, from, page.data()) == check) {
      result = Result::kRead;
    }
  }
  GiveBack(std::move(buffer));
  return result;
}

uint64_t DirectReads::MemoryBytes() const {
  base::MutexLock lock(mutex_);
  uint64_t bytes = buffer_bytes_;
  for (const auto& [first, segment] : segments_) {
    bytes += sizeof(segment) + segment.path.capacity();
    if (segment.opened != nullptr) bytes += segment.opened->places.size() * sizeof(PagePlace);
  }
  return bytes;
}

}  // namespace prefixd::ssd
