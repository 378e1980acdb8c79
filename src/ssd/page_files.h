// Reads large pages past RocksDB: one read of the file system into a buffer, then one pass from
// there into the arena that copies and checks at once. RocksDB's own way costs two more copies and
// one more sum, half a CPU second a GB.
//
// The closing marker of a segment notes where its pages stand in their file. If a note does not
// hold, or anything else is wrong, the check of what was read fails. The caller then asks RocksDB,
// which says what is wrong.
//
// Thread-safe. The mutex is not held across I/O.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rocksdb/file_system.h"

#include "base/mutex.h"
#include "block/page_check.h"
#include "ssd/segment_store.h"
#include "ssd/table_db.h"

namespace prefixd::ssd {

// Where a page's header begins in its pages file. The page stands `gap_bytes` behind the header: 0
// if both are one value; if the header is in the key, what RocksDB adds to a key.
struct PagePlace {
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint8_t gap_bytes = 0;
};
// Smaller pages are not noted: a note would cost more than the copies.
inline constexpr uint64_t kSmallestNotedPage = 16 << 10;

// The closing marker: u64 count of records, then n x {u64 sequence, u64 offset and, in its highest
// byte, gap_bytes}, little-endian.
std::string EncodeClosingMarker(uint64_t records, std::span<const PagePlace> places);
// Returns false if `value` is no closing marker.
bool DecodeClosingMarker(const std::string& value, uint64_t* records,
                         std::vector<PagePlace>* places);
// Where the key and the value of the block at `block_offset` begin, in a table file with one value
// a block.
struct EntryPlace {
  uint64_t key = 0, value = 0;
};
EntryPlace EntryAt(uint64_t block_offset, uint64_t key_bytes, uint64_t value_bytes);

class PageFiles {
 public:
  // Replaces all segments.
  void Set(const std::vector<SegmentInfo>& segments, const std::map<uint64_t, std::string>& paths)
      PREFIXD_EXCLUDES(mutex_);
  // Adds a segment. `path` is that of its pages file; empty = none.
  void Add(const SegmentInfo& segment, const std::string& path) PREFIXD_EXCLUDES(mutex_);
  void Drop(const SegmentInfo& segment) PREFIXD_EXCLUDES(mutex_);

  // Returns true if `page` holds the page's bytes. Returns false if they cannot be had this way;
  // `page` is undefined then.
  bool Read(const TableDb& table_db, uint64_t sequence, const block::PageName& name, uint64_t check,
            std::span<std::byte> page) PREFIXD_EXCLUDES(mutex_);
  // Bytes of notes and read buffers.
  uint64_t MemoryBytes() const PREFIXD_EXCLUDES(mutex_);

 private:
  struct Opened {
    std::unique_ptr<rocksdb::FSRandomAccessFile> file;  // null: it could not be opened
    std::vector<PagePlace> places;                      // by sequence
  };
  struct Segment {
    uint64_t last_sequence = 0;
    std::string path;
    std::shared_ptr<const Opened> opened{};
    uint64_t used = 0;  // stamp of the last use
  };
  struct Buffer {
    std::byte* data = nullptr;  // aligned to a page of memory; owned
    size_t bytes = 0;
    ~Buffer();
  };

  std::shared_ptr<const Opened> OpenedFor(const TableDb& table_db, uint64_t sequence)
      PREFIXD_EXCLUDES(mutex_);
  void CloseColdest() PREFIXD_REQUIRES(mutex_);
  std::unique_ptr<Buffer> TakeBuffer(size_t bytes) PREFIXD_EXCLUDES(mutex_);
  void GiveBack(std::unique_ptr<Buffer> buffer) PREFIXD_EXCLUDES(mutex_);

  mutable base::Mutex mutex_;
  std::map<uint64_t, Segment> segments_ PREFIXD_GUARDED_BY(mutex_);  // by first sequence
  size_t opened_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t stamp_ PREFIXD_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Buffer>> buffers_ PREFIXD_GUARDED_BY(mutex_);  // not in use
  uint64_t buffer_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;                     // used ones too
};

}  // namespace prefixd::ssd
