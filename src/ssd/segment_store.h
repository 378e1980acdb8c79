// The SSD tier: a log of segments on RocksDB. A segment is one table file of pages and a small second one of block records
// under the same sequences, built by SstFileWriter and added to their column families in one atomic, synced ingest. No
// memtables and no WAL for pages and records, write amplification 1.0 by construction. A page is spilled once its segment is ingested.
//
// The only room that includes rocksdb/. Thread-safe; has no threads of its own beyond RocksDB's. Keys are 8-byte big-endian
// sequences whose high 24 bits are a store epoch, raised and synced at every Open: a sequence is never used twice.
// Small metadata (spaces, instance) stands in the default column family, written with the WAL and a sync.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "block/page_check.h"

namespace prefixd::ssd {

inline constexpr uint32_t kStoreFormatVersion = 1;

struct SegmentInfo {
  uint64_t first_sequence = 0, last_sequence = 0;
  uint64_t file_bytes = 0;  // of both files
};

// One segment being written. Not thread-safe. Destroyed without Finish(): the files are removed, nothing was added.
class SegmentWriter {
 public:
  virtual ~SegmentWriter() = default;
  // Streams header and page into the pages file. Returns the page's sequence, ascending.
  virtual absl::StatusOr<uint64_t> AddPage(const block::PageHeader& header, std::span<const std::byte> page) = 0;
  // A record takes a sequence of its own from the same counter.
  virtual absl::StatusOr<uint64_t> AddRecord(const std::string& record) = 0;
  virtual uint64_t bytes() const = 0;  // of pages and records so far
  // Ingests both files, atomically and synced. On error nothing is visible.
  virtual absl::StatusOr<SegmentInfo> Finish() = 0;
};

class SegmentStore {
 public:
  struct Options {
    std::string directory;       // created 0700 if absent
    bool direct_io = true;       // falls back to buffered where the filesystem refuses it
    uint64_t block_cache_bytes = uint64_t{8} << 20;  // index blocks of table files
  };
  // FailedPrecondition when another process has the directory open or its format version is not ours (says both);
  // PermissionDenied / Unavailable naming the directory when it cannot be written.
  static absl::StatusOr<std::unique_ptr<SegmentStore>> Open(const Options& options);
  ~SegmentStore();

  absl::Status PutMeta(const std::string& key, const std::string& value);  // synced
  absl::Status DeleteMeta(const std::string& key);
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ListMeta(const std::string& prefix) const;

  absl::StatusOr<std::unique_ptr<SegmentWriter>> NewSegment();

  // Reads the page of `sequence` into `page` (exactly its length) and its header. NotFound when there is none, DataLoss when the
  // length differs or RocksDB's own checksum fails, Unavailable for an I/O error. The caller verifies with block::VerifyPage.
  absl::Status ReadPage(uint64_t sequence, block::PageHeader* header, std::span<std::byte> page) const;
  // Every record in sequence order; reads no page. Stops at the first error that `visit` returns. A record that cannot be read is
  // counted in *unreadable and passed over.
  absl::Status ForEachRecord(const std::function<absl::Status(uint64_t sequence, std::span<const std::byte> record)>& visit,
                             uint64_t* unreadable) const;

  std::vector<SegmentInfo> Segments() const;  // oldest first
  // Removes both files of the segment. Its pages must be out of the index first.
  absl::Status DropSegment(const SegmentInfo& segment);
  uint64_t FileBytes() const;       // allocated blocks of all files in the directory, as the filesystem counts them
  uint64_t MemoryBytes() const;     // table readers, block cache
  uint64_t last_sequence() const;   // every sequence given out so far is <= this
  bool direct_io() const;           // what is in effect

 private:
  struct Impl;
  explicit SegmentStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prefixd::ssd
