// Arena: the RAM tier. One mapped file cut into slabs; a slab is cut into equal extents, one page
// each.
//
// Thread-safe. Holds one mutex and calls nothing while holding it. The capacity is the hard limit
// of the RAM that pages and their records can take: an extent that does not fit is refused, never
// granted and corrected later.
//
// Classes: pages of one (space, group, format) have a full size F; an extent is F, F/2 or F/4
// rounded up to 4 KiB units, the smallest that holds the page. A slab serves one extent size at a
// time and goes back to the common pool when its last extent is freed. No extent crosses a slab.
//
// Shared arena: a file on tmpfs (block/arena_file.h), owned by one daemon (flock), found again by the
// next one. A slab enters service when fallocate has given it and its records their memory, and
// leaves it by having holes punched. Private arena: anonymous memory, no records, nothing survives.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/mutex.h"
#include "block/arena_file.h"
#include "block/extent.h"
#include "block/page_check.h"
#include "block/tokens.h"

namespace prefixd::ram {

struct ArenaStats {
  uint64_t capacity_bytes = 0;  // slabs x slab_bytes: what can be used of Options::capacity_bytes
  uint64_t slab_bytes = 0;
  uint64_t slabs_in_use = 0, slabs_free = 0;
  uint64_t slabs_in_service = 0;  // that have memory
  uint64_t extent_bytes = 0;      // allocated extents
  uint64_t extents = 0;
  uint64_t table_bytes = 0;  // header, slots, space table, records that have memory
};

struct SlabRange {
  uint64_t begin = 0, end = 0;  // bytes from the arena's start
  uint64_t extent_bytes = 0;    // allocated in it
};

// What the record of a page says of it.
struct PageContent {
  block::PageName name;  // name.space is the space table's business
  uint32_t space = 0;    // ordinal of AddSpace
  block::BlockHash parent{};
  uint64_t path = 0, parent_path = 0;
  uint32_t first_token = 0;
  uint64_t page_bytes = 0, payload_bytes = 0, check = 0;
  block::SequenceView tokens;       // of the block; borrowed for the call
  std::vector<uint32_t> ends;       // token counts
  int64_t last_use = 0;
};

// A page that an earlier daemon published. Its extent is allocated: keep it, or Free it.
struct FoundPage {
  block::Extent extent;
  PageContent content;  // tokens borrow from the record: valid until the extent is freed
  std::vector<block::ContentKey> keys;  // content.tokens borrows them
  uint64_t holders = 0;                 // slots that may be reading
};
struct FoundSpace {
  block::SpaceId id{};
  std::string identity;  // encoded
};

class Arena {
 public:
  struct Options {
    uint64_t capacity_bytes = uint64_t{1} << 30;  // records included
    // A multiple of 4 KiB, at least 64 KiB, at most the capacity.
    // 0 = clamp(capacity / 64, 4 MiB, 64 MiB), at most the capacity. A file that is found keeps its own.
    uint64_t slab_bytes = 0;
    std::string path;    // of the file; empty = private
    uint64_t epoch = 0;  // of this daemon
    // Room that the file has for a larger capacity later, without a new file; at least the capacity.
    uint64_t max_capacity_bytes = 0;
  };
  // Private: ResourceExhausted if the kernel refuses the mapping. InvalidArgument if the capacity is
  // below one slab of 64 KiB or slab_bytes is out of its range.
  // Shared: FailedPrecondition when another process owns the file, or the folder is no tmpfs;
  // ResourceExhausted when the tmpfs has no room for a quarter of the capacity. A file of another
  // kernel boot, version or shape, or a damaged one, is replaced by a new one, and found() is empty.
  static absl::StatusOr<std::unique_ptr<Arena>> Open(const Options& options);
  ~Arena();  // the file stays
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool shared() const { return fd_ >= 0; }
  // Why the arena that was there could not be used; empty when there was none or it was adopted.
  const std::string& replaced_why() const { return replaced_why_; }
  // Once, before the first Allocate: what the file held, coldest first. Records that are torn, void
  // by Clear or beyond their slab are left out, their extents free.
  std::vector<FoundPage> TakeFound();
  std::vector<FoundSpace> Spaces() const;  // by ordinal

  // The class of a page: extent bytes that Allocate would take. 0 when full_page_bytes does not fit
  // into a slab.
  uint64_t ExtentBytes(uint64_t page_bytes, uint64_t full_page_bytes) const;
  // 4 KiB aligned space, contents undefined; the caller owns it until Free(). ResourceExhausted
  // says how much is in use when no slab has room: evict, then try again. InvalidArgument when a
  // full page does not fit into a slab. Requires: 0 < page_bytes <= full_page_bytes.
  absl::StatusOr<block::Extent> Allocate(uint64_t page_bytes, uint64_t full_page_bytes)
      PREFIXD_EXCLUDES(mutex_);
  // Retires the record first. An extent that is not allocated, or not as it was given out, is our own
  // bug: aborts, naming it.
  void Free(block::Extent extent) PREFIXD_EXCLUDES(mutex_);
  // Valid until Free(extent). The arena does not order readers and writers of these bytes.
  std::byte* data(block::Extent extent) const { return base_ + extent.offset; }

  // --- records; all of it nothing in a private arena ---
  // Ordinal of the space, added when it is new. ResourceExhausted when the table is full: its pages
  // are then not recorded (ordinal kNoSpace). An id that was cleared gets its new generation.
  static constexpr uint32_t kNoSpace = ~uint32_t{0};
  absl::StatusOr<uint32_t> AddSpace(const block::SpaceId& id, const std::string& identity)
      PREFIXD_EXCLUDES(mutex_);
  // Every record of the space so far is void for the next daemon.
  void ClearSpace(uint32_t space);
  // Writes the record of an allocated extent whose payload is in place, then its state. A page that
  // is published again (moved content, new name) is retired first.
  void Publish(block::Extent extent, const PageContent& content);
  // Marks of the extent's record; nullptr in a private arena. Valid until Free(extent).
  block::PageMarks* marks(block::Extent extent) const;

  // --- slabs ---
  // The slab that holds the fewest allocated bytes among those serving another extent size than
  // `extent_bytes`: emptying it gives the wanted size a slab. nullopt when there is none.
  std::optional<SlabRange> CheapestSlabToEmpty(uint64_t extent_bytes) const
      PREFIXD_EXCLUDES(mutex_);
  // Slabs in service beyond the capacity (a smaller budget than the last daemon's): the one to empty
  // next. Free slabs beyond it give their memory back at once.
  std::optional<SlabRange> SlabToRetire() const PREFIXD_EXCLUDES(mutex_);
  // Gives new slabs their memory ahead of need, so that Allocate need not wait for fallocate.
  // False: everything is in service, or the tmpfs is full.
  bool BackOneMore() PREFIXD_EXCLUDES(mutex_);

  ArenaStats stats() const PREFIXD_EXCLUDES(mutex_);
  // A new read-only description of the file, for a worker: a writable mapping of it is refused by the
  // kernel. The caller owns the descriptor.
  absl::StatusOr<int> OpenReadOnly() const;
  int fd() const { return fd_; }                       // -1 = private
  block::ArenaHeader* header() const { return header_; }  // nullptr = private
  uint64_t data_offset() const;                        // of offset 0, in the file
  uint64_t file_bytes() const;

 private:
  struct Impl;
  // (see arena.cc)
};

}  // namespace prefixd::ram
