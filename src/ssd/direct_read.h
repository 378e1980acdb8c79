// Reads RocksDB's table files without RocksDB. Only this file, direct_read.cc and table_tail.cc
// know how they are laid out: block-based tables of format version 5 (table_db.cc asks for it).
//
// - DirectReads reads a large page by one read of the file system into a buffer, and then copies
//   and checks it in one pass into the arena. RocksDB's own way costs two more copies and one more
//   sum; src/DECISIONS.md has the figures. The closing marker of a segment notes where its pages
//   stand.
// - CheckTail verifies the end of a table file before RocksDB parses it.
//
// RocksDB is the fallback. A page that is not where its note says is read by RocksDB. If RocksDB
// has it, the layout is not the one that we know, and the segment is left to RocksDB from then on.
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
// Where the entries of a table file stand while it is written, if it has one value a block.
class EntryPlaces {
 public:
  struct Place {
    uint64_t key = 0, value = 0;
  };
  // Returns the place of the entry that is added next. `key_bytes` are ours, without RocksDB's.
  Place Next(uint64_t key_bytes, uint64_t value_bytes);
  uint64_t file_bytes() const { return next_block_; }  // so far

 private:
  uint64_t next_block_ = 0;
};

class DirectReads {
 public:
  enum class Result {
    kRead,       // `page` holds the page's bytes
    kNone,       // the page has no note, or could not be read, or is damaged
    kElsewhere,  // another page or none begins at the noted place
  };

  // Replaces all segments.
  void Set(const std::vector<SegmentInfo>& segments, const std::map<uint64_t, std::string>& paths)
      PREFIXD_EXCLUDES(mutex_);
  // Adds a segment. `path` is that of its pages file; empty = none.
  void Add(const SegmentInfo& segment, const std::string& path) PREFIXD_EXCLUDES(mutex_);
  void Drop(const SegmentInfo& segment) PREFIXD_EXCLUDES(mutex_);

  // `page` is undefined unless the result is kRead.
  Result Read(const TableDb& table_db, uint64_t sequence, const block::PageName& name,
              uint64_t check, std::span<std::byte> page) PREFIXD_EXCLUDES(mutex_);
  // Leaves the segment of `sequence` to RocksDB until Set. Returns false if it was left before.
  bool LeaveToRocksDb(uint64_t sequence) PREFIXD_EXCLUDES(mutex_);
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
    bool left_to_rocksdb = false;
  };
  struct Buffer {
    std::byte* data = nullptr;  // aligned to a page of memory; owned
    size_t bytes = 0;
    ~Buffer();
  };

  // Returns the segment that `sequence` is in; null if there is none.
  Segment* Around(uint64_t sequence) PREFIXD_REQUIRES(mutex_);
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

// RocksDB parses the block of properties before it looks at that block's checksum. A build with
// assertions, such as Debian's, ends the process on one flipped bit there, at every start. So this
// reads and verifies the tail of a file first, from its properties to its end, and replaces `*file`
// by a file that answers reads of the tail from the verified bytes. Reading it is thread-safe if
// reading `*file` is.
//
// Returns Corruption if the tail is not what RocksDB wrote. A tail of a later format version stays
// as it is and sets `*unknown`: RocksDB says whether it can read the file.
rocksdb::IOStatus CheckTail(rocksdb::FileSystem& files, const std::string& path,
                            std::unique_ptr<rocksdb::FSRandomAccessFile>* file, bool* unknown);

}  // namespace prefixd::ssd
