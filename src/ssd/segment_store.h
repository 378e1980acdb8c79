// The SSD tier: a log of segments on RocksDB. A segment is one table file of pages and a small
// second one of block records under the same sequences, built by SstFileWriter and added to their
// column families in one atomic, synced ingest. No memtables and no WAL for pages and records,
// write amplification 1.0 by construction. A page is spilled once its segment is ingested.
//
// The only room that includes rocksdb/. Thread-safe. Its only threads are RocksDB's and one for
// each file being written (write_behind.h). Keys are 8-byte big-endian sequences. All but their low
// 20 bits are a store epoch, which is raised and synced at every Open and when it is used up, so a
// sequence is never used twice. A page's key continues with the page's 64-byte header. The value is
// then the page alone, which RocksDB takes from where it lies in the arena. Small metadata (spaces,
// their limits) stands in the default column family, written with the WAL and a sync.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/file_lock.h"
#include "block/page_check.h"
#include "ssd/cleared_borders.h"

namespace prefixd::ssd {

// 5: blocks have serials, and hashes a key. Earlier versions named a block's parent by a hash that
// could be made to collide, so what they wrote is not safe to read: Open reclaims it.
inline constexpr uint32_t kStoreFormatVersion = 5;
inline constexpr uint32_t kOldestReadVersion = 5;

struct FileLayer;  // file_layer.h

// Is told of every table file whose layout prefixd does not know and RocksDB may (direct_read.h).
// Called by the thread that opens or reads the file, without a lock. Must not call the store.
using OnUnknownFormat = std::function<void(const std::string& what)>;

struct SegmentInfo {
  uint64_t first_sequence = 0, last_sequence = 0;
  uint64_t file_bytes = 0;  // of both files
};

// One segment being written. Not thread-safe. Must not outlive its store. If it is destroyed
// without Finish(), it removes its files and adds nothing. An error of an Add or of Finish is
// final: every later call returns it.
class SegmentWriter {
 public:
  virtual ~SegmentWriter() = default;
  // Streams header and page into the pages file. Returns the page's sequence, ascending.
  // `element_bytes` is 2 or 4 for a full-precision page, which is then compressed if that saves
  // something, else 0. ReadPage returns the page itself.
  virtual absl::StatusOr<uint64_t> AddPage(const block::PageHeader& header,
                                           std::span<const std::byte> page,
                                           uint32_t element_bytes) = 0;
  absl::StatusOr<uint64_t> AddPage(const block::PageHeader& header,
                                   std::span<const std::byte> page) {
    return AddPage(header, page, 0);
  }
  // Adds a record. It takes a sequence of its own from the same counter.
  virtual absl::StatusOr<uint64_t> AddRecord(const std::string& record) = 0;
  virtual uint64_t bytes() const = 0;  // of page headers, pages and records so far
  // Ingests both files, atomically and synced. On error nothing is visible.
  virtual absl::StatusOr<SegmentInfo> Finish() = 0;
};

// Returns the name of the store in `directory`: hex digits, made up when the store was created.
// Empty if there is none.
std::string ReadInstance(const std::string& directory);

class SegmentStore {
 public:
  struct Options {
    // Created if absent (its parent must exist), made 0700. One that exists must be empty or a
    // store.
    std::string directory;
    bool direct_io = true;  // falls back to buffered where the filesystem refuses it
    uint64_t block_cache_bytes = uint64_t{8} << 20;  // index blocks of table files
    std::shared_ptr<FileLayer> files = nullptr;      // null: the machine's own file system
    // Open returns Unavailable if less is free, counting what the directory holds as free.
    uint64_t open_free_bytes = 0;
    base::LockWait lock_wait{};  // for locks of a process that is ending
    // Id of the key that the rooms above make hashes with; Open reclaims a store of another key.
    // Without one Open accepts the store's key, whichever it is.
    std::optional<base::Hash128> key_id{};
    OnUnknownFormat on_unknown_format = nullptr;
    // False: RocksDB reads every page, as it does where direct_read.h does not know the layout.
    // For tests and measurements.
    bool reads_directly = true;
  };
  // Opens or creates a store. FailedPrecondition if another store has the directory open, if its
  // format version is later than ours (the message has both), if it holds something else, or if it
  // has used all epochs. PermissionDenied, naming the directory, if this user may not write it.
  // Unavailable if a later Open may succeed: the disk takes no writes or has no room to open, or a
  // lock is still held after `lock_wait` and no living holder is known. Moves a damaged database
  // aside and opens a new one in its place.
  static absl::StatusOr<std::unique_ptr<SegmentStore>> Open(const Options& options);
  ~SegmentStore();

  absl::Status PutMeta(const std::string& key, const std::string& value);  // synced
  absl::Status DeleteMeta(std::span<const std::string> keys);              // one sync for all
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ListMeta(
      const std::string& prefix) const;

  // Returns what was cleared. The store only keeps it; whoever reads records compares them with it.
  ClearedBorders Borders() const;
  // Adds borders, which count at once. OK: they also count after whatever happens to this process
  // or machine. After an error they count only as long as this store is open, until SaveBorders
  // succeeds.
  absl::Status AddBorders(const ClearedBorders& more);
  absl::Status SaveBorders();
  bool BordersSaved() const;

  // Begins a segment. Only one is written at a time, which gives every segment an unbroken run of
  // sequences that no other file overlaps. FailedPrecondition while another writer is neither
  // finished nor destroyed.
  absl::StatusOr<std::unique_ptr<SegmentWriter>> NewSegment();

  // Reads the page of `sequence` into `page` (exactly its length) and its header. NotFound when
  // there is none, DataLoss when the length differs or RocksDB's own checksum fails, Unavailable
  // for an I/O error. The caller verifies with block::VerifyPage.
  absl::Status ReadPage(uint64_t sequence, block::PageHeader* header,
                        std::span<std::byte> page) const;
  // Reads and verifies a page whose name and check are known; a large one by one direct read.
  // Errors as above; DataLoss also if it is another page or not whole.
  absl::Status ReadPage(uint64_t sequence, const block::PageName& name, uint64_t check,
                        std::span<std::byte> page) const;
  // Visits every record in sequence order; reads no page. Stops at the first error that `visit`
  // returns. Skips records that cannot be read and counts them in *unreadable (a records file of
  // which nothing can be read counts as 1).
  absl::Status ForEachRecord(
      const std::function<absl::Status(uint64_t sequence, std::span<const std::byte> record)>&
          visit,
      uint64_t* unreadable) const;

  // Does the same for one segment.
  absl::Status ForEachRecordOf(
      const SegmentInfo& segment,
      const std::function<absl::Status(uint64_t sequence, std::span<const std::byte> record)>&
          visit,
      uint64_t* unreadable) const;

  std::vector<SegmentInfo> Segments() const;  // oldest first
  // Removes both files of the segment, no other. NotFound if there is no such segment. Its pages
  // must be out of the index first.
  absl::Status DropSegment(const SegmentInfo& segment);
  // Returns the allocated bytes of all files in the directory, as the filesystem counts them:
  // segments being written, metadata and files being deleted included. Looks at every file.
  uint64_t FileBytes() const;
  // Damaged databases that were moved aside; FileBytes includes them.
  struct Kept {
    uint64_t count = 0, bytes = 0;
  };
  Kept DamagedCopies() const;
  absl::Status RemoveDamaged();                   // the oldest; NotFound if there is none
  std::chrono::nanoseconds longest_hold() const;  // of its mutex, since Open
  // Bytes of table readers, block cache, memtables, the buffers of the segment being written, and
  // what is buffered and noted for reads.
  uint64_t MemoryBytes() const;
  uint64_t FreeBytes() const;      // of the filesystem, for this user
  uint64_t last_sequence() const;  // every sequence given out so far is <= this
  bool direct_io() const;          // what is in effect
  // What Open found, in words for people; empty if it found nothing of the kind.
  struct Findings {
    std::string reclaimed_why;  // why it threw away what was there
    std::string moved_aside;    // the folder that a damaged database was moved to
    std::string moved_why;
    std::string cleared_why;         // why nothing of what was there counts
    std::vector<std::string> notes;  // damage that cost nothing, or metadata only
  };
  const Findings& findings() const;

 private:
  struct Impl;
  // Through RocksDB alone.
  absl::Status ReadAndVerify(uint64_t sequence, const block::PageName& name, uint64_t check,
                             std::span<std::byte> page) const;
  explicit SegmentStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace prefixd::ssd
