// Arena: the RAM tier. One mapped file cut into slabs; a slab is cut into equal extents, one page
// each.
//
// Thread-safe. Holds one mutex and calls no other room while holding it; giving a slab its memory,
// which takes long, happens outside it. The capacity is the hard limit of the RAM that pages and
// their records can take: an extent that does not fit is refused, never granted and corrected
// later.
//
// Classes: pages of one (space, group, format) have a full size F; an extent is F, F/2 or F/4
// rounded up to 4 KiB units, the smallest that holds the page. A slab serves one extent size at a
// time and goes back to the common pool when its last extent is freed. No extent crosses a slab.
//
// Shared arena: a file on tmpfs (block/arena_file.h), owned by one daemon (ram/slot_locks.h), found
// again by the next one. A slab enters service when fallocate has given it and its records their
// memory, and leaves it by having holes punched. Private arena: anonymous memory, no records,
// nothing survives.
#pragma once
#include <atomic>
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

#include "base/file_lock.h"
#include "base/mutex.h"
#include "block/arena_file.h"
#include "block/extent.h"
#include "block/page_check.h"
#include "block/tokens.h"

namespace prefixd::ram {

class SharedFile;
class SlotLocks;
class SpaceTable;

struct ArenaStats {
  // Whole slabs that can be used of Options::capacity_bytes, beside table_bytes as they are now.
  uint64_t capacity_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t slabs_in_use = 0, slabs_free = 0;
  uint64_t slabs_in_service = 0;  // that have memory
  uint64_t extent_bytes = 0;      // allocated extents
  uint64_t extents = 0;
  uint64_t table_bytes = 0;                 // header, slots, space table, records that have memory
  std::chrono::nanoseconds longest_hold{};  // of its mutex, since it was opened
};

struct SlabRange {
  uint64_t begin = 0, end = 0;  // bytes from the arena's start
  uint64_t extent_bytes = 0;    // allocated in it
};

// What the record of a page says of it.
struct PageContent {
  block::PageName name;  // name.space is the space table's business
  uint32_t space = 0;    // of AddSpace
  block::BlockHash parent{};
  uint64_t serial = 0, parent_serial = 0;  // of the block and its parent (index/node.h)
  uint32_t first_token = 0;
  uint64_t page_bytes = 0, payload_bytes = 0, check = 0;
  block::SequenceView tokens;  // of the block; borrowed for the call
  std::vector<uint32_t> ends;  // token counts
  int64_t last_use = 0;
};

// A page that an earlier daemon published. Its extent is allocated: keep it, or Free it. Move it,
// do not copy it.
struct FoundPage {
  block::Extent extent;
  // With name.space. Tokens borrow from the record: valid until the extent is freed.
  PageContent content;
  std::vector<block::ContentKey> keys;  // content.tokens borrows them
  uint64_t holders = 0;                 // slots that may be reading: their lock is held
};
// An extent whose page has no valid name any more (its space was cleared, its record is damaged),
// but which slots still hold. Allocated: Free it when none of the slots is locked.
struct HeldExtent {
  block::Extent extent;
  uint64_t holders = 0;
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
    // 0 = clamp(capacity / 64, 4 MiB, 64 MiB), at most the capacity. A file that is found keeps its
    // own.
    uint64_t slab_bytes = 0;
    std::string path = {};  // of the file; empty = private
    uint64_t epoch = 0;     // of this daemon
    // Room that the file has for a larger capacity later, without a new file; at least the
    // capacity. 0 = 64 times the capacity, at most the machine's memory. A file that is found keeps
    // its own, which then limits the capacity.
    uint64_t max_capacity_bytes = 0;
    base::LockWait lock_wait{};  // for the lock of a file whose owner is on its way out
    base::Hash128 key_id{};      // of the key that block hashes are made with
  };
  // ResourceExhausted if the kernel refuses the mapping. InvalidArgument if the capacity is below
  // one slab of 64 KiB (shared: with its tables) or slab_bytes is out of its range. Shared:
  // Unavailable when another process owns the file; FailedPrecondition when the folder is no tmpfs
  // or something else stands under the path; ResourceExhausted when the tmpfs has no room for a
  // quarter of the capacity. A file of another kernel boot, version, key or shape, or a damaged
  // one, is replaced by a new one, and nothing is found.
  static absl::StatusOr<std::unique_ptr<Arena>> Open(const Options& options);
  ~Arena();  // the file stays
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool shared() const { return file_ != nullptr; }
  // Why the arena that was there could not be used; empty when there was none or it was adopted.
  const std::string& replaced_why() const;
  // Once, before the first Allocate: what the file held, coldest first. Records that are torn, void
  // by Clear or beyond their slab are left out, their extents free.
  std::vector<FoundPage> TakeFound();
  // Once, too; what TakeFound left out although a process may be reading it.
  std::vector<HeldExtent> TakeHeld();
  std::vector<FoundSpace> Spaces() const PREFIXD_EXCLUDES(mutex_);  // by id

  // The class of a page: extent bytes that Allocate would take. 0 when full_page_bytes does not fit
  // into a slab.
  uint64_t ExtentBytes(uint64_t page_bytes, uint64_t full_page_bytes) const;
  // 4 KiB aligned space, contents undefined, zero behind the page; the caller owns it until Free().
  // ResourceExhausted says how much is in use when no slab has room: evict, then try again.
  // InvalidArgument when a full page does not fit into a slab. Requires: 0 < page_bytes <=
  // full_page_bytes.
  absl::StatusOr<block::Extent> Allocate(uint64_t page_bytes, uint64_t full_page_bytes)
      PREFIXD_EXCLUDES(mutex_);
  // A free extent of another class that is larger than the page, the smallest such: for when every
  // slab serves other sizes and none can be emptied. nullopt when there is none.
  std::optional<block::Extent> AllocateLarger(uint64_t page_bytes) PREFIXD_EXCLUDES(mutex_);
  // Retires the record first. An extent that is not allocated, or not as it was given out, is our
  // own bug: aborts, naming it.
  void Free(block::Extent extent) PREFIXD_EXCLUDES(mutex_);
  // Zeroes all memory in service that no extent covers, records too, and what is free for good goes
  // back to the kernel. Extents that are allocated now and are none of `keep` are zeroed when they
  // are freed.
  void Scrub(const std::vector<block::Extent>& keep) PREFIXD_EXCLUDES(mutex_);
  // Valid until Free(extent). The arena does not order readers and writers of these bytes.
  std::byte* data(block::Extent extent) const { return base_ + extent.offset; }

  // --- records; all of it nothing in a private arena ---
  // Place of the space in the table, added when it is new. ResourceExhausted when the table is
  // full: its pages are then not recorded (place kNoSpace).
  static constexpr uint32_t kNoSpace = ~uint32_t{0};
  absl::StatusOr<uint32_t> AddSpace(const block::SpaceId& id, const std::string& identity)
      PREFIXD_EXCLUDES(mutex_);
  // Its place may become another space's. Requires: it has no page, and nobody is about to Publish
  // one. Records of it that are still there are void for the next daemon.
  void RemoveSpace(uint32_t space) PREFIXD_EXCLUDES(mutex_);
  // Every record of the space so far is void for the next daemon.
  void ClearSpace(uint32_t space) PREFIXD_EXCLUDES(mutex_);
  // Writes the record of an allocated extent whose payload is in place, then its state. A page that
  // is published again (moved content, new name) is retired first. Marks: last_use and ends are
  // set, holders stay. A block of more than kMaxRecordTokens or kMaxRecordContent, or of kNoSpace,
  // gets no record, only marks. Not for one extent from two threads.
  void Publish(block::Extent extent, const PageContent& content) PREFIXD_EXCLUDES(mutex_);
  // Marks of the extent's record; nullptr in a private arena. Valid until Free(extent).
  block::PageMarks* marks(block::Extent extent) const;

  // --- slabs ---
  // The slab that holds the fewest allocated bytes among those serving another extent size than
  // `extent_bytes`: emptying it gives the wanted size a slab. nullopt when there is none.
  std::optional<SlabRange> CheapestSlabToEmpty(uint64_t extent_bytes) const
      PREFIXD_EXCLUDES(mutex_);
  // Slabs in service beyond the capacity (a smaller budget than the last daemon's): one to empty.
  // Asked again, the next of them, so that one with held pages does not keep the others. Nothing is
  // allocated in them any more; those that are free give their memory back at once.
  std::optional<SlabRange> SlabToRetire() const PREFIXD_EXCLUDES(mutex_);
  // Another capacity, from now on. Slabs beyond it run empty: SlabToRetire names them. Offsets and
  // mappings stay. FailedPrecondition for a private arena; InvalidArgument outside what the file
  // has tables and address space for.
  absl::Status Resize(uint64_t capacity_bytes) PREFIXD_EXCLUDES(mutex_);
  // Slabs in service and tables, beyond the capacity.
  uint64_t OverBytes() const PREFIXD_EXCLUDES(mutex_);
  // Gives new slabs their memory ahead of need, so that Allocate need not wait for fallocate.
  // False: everything is in service, or the tmpfs is full.
  bool BackOneMore() PREFIXD_EXCLUDES(mutex_);
  // Maps the memory of a slab in service a step (an eighth of a slab) ahead of where it is filled,
  // so that who writes there need not fault page by page; changes no bytes. What no extent covers,
  // and slabs that were adopted with pages, are left alone. False: nothing is left to do, or
  // another thread is at it.
  bool PopulateAhead() PREFIXD_EXCLUDES(mutex_);
  // Whether PopulateAhead has something to do; takes no lock.
  bool wants_populating() const { return wants_populating_.load(std::memory_order_relaxed); }

  ArenaStats stats() const PREFIXD_EXCLUDES(mutex_);
  // A new read-only description of the file, for a worker: a writable mapping of it is refused by
  // the kernel. The caller owns the descriptor.
  absl::StatusOr<int> OpenReadOnly() const;
  int fd() const;                           // -1 = private
  block::ArenaHeader* header() const;       // nullptr = private
  block::SlotRecord* slot_records() const;  // kArenaSlots; nullptr = private
  SlotLocks* slot_locks() const;            // nullptr = private
  uint64_t data_offset() const;             // of offset 0, in the file; 0 = private
  uint64_t file_bytes() const;              // 0 = private

 private:
  struct Slab {
    bool in_service = false;
    uint64_t record_bytes = 0;     // of its room for records, that have memory
    uint64_t extent_bytes = 0;     // 0 = free
    uint64_t filled_bytes = 0;     // up to the end of the highest extent given out since the cut
    uint64_t populated_bytes = 0;  // of its begin: mapped, or to be by who fills it
    bool populating = false;       // by a thread, without the mutex: it must not leave service
    std::vector<uint32_t> free_slots;  // newest last: reuse warm lines
    std::vector<bool> used;            // by slot
    std::vector<bool> scrub;           // by slot: zeroed when it is freed; empty = none
    uint64_t used_slots() const { return used.size() - free_slots.size(); }
    uint64_t covered_bytes() const { return used.size() * extent_bytes; }  // by extents
  };
  struct Shape {
    uint64_t capacity_bytes = 0;  // at first; of a private arena, for ever
    uint64_t slab_bytes = 0;
    uint64_t slabs = 0;  // that there is address space for
  };

  Arena(const Shape& shape, std::byte* base, std::unique_ptr<SharedFile> file);
  static absl::StatusOr<std::unique_ptr<Arena>> OpenPrivate(const Options& options);
  static absl::StatusOr<std::unique_ptr<Arena>> OpenShared(const Options& options);

  // arena.cc: extents.
  // A slab that has a free slot of this size, cut if need be. nullopt: no slab in service can.
  std::optional<uint32_t> SlabFor(uint64_t extent_bytes) PREFIXD_REQUIRES(mutex_);
  void Cut(uint32_t index, uint64_t extent_bytes) PREFIXD_REQUIRES(mutex_);
  block::Extent Take(uint32_t index) PREFIXD_REQUIRES(mutex_);
  absl::Status Full(uint64_t extent_bytes) const PREFIXD_REQUIRES(mutex_);
  void ZeroBehind(uint64_t page_bytes, block::Extent extent);
  // The slot of an extent in its slab. Aborts when there is no such extent.
  uint32_t SlotOf(block::Extent extent) const PREFIXD_REQUIRES(mutex_);
  void CloseSlab(uint32_t index) PREFIXD_REQUIRES(mutex_);  // it has no free slot any more
  void EmptySlab(uint32_t index) PREFIXD_REQUIRES(mutex_);  // nor any extent
  SlabRange RangeOf(uint32_t index) const PREFIXD_REQUIRES(mutex_);

  // scrub.cc: no byte of the past.
  void ScrubSlab(uint32_t index) PREFIXD_REQUIRES(mutex_);
  void ScrubSlot(uint32_t index, uint32_t slot) PREFIXD_REQUIRES(mutex_);

  // service.cc: which slabs and records have memory.
  uint64_t BackedBytes() const PREFIXD_REQUIRES(mutex_);
  bool Fits(uint64_t more_bytes) const PREFIXD_REQUIRES(mutex_);
  uint64_t RecordBytes(uint64_t extent_bytes) const;
  // Gives one more slab its memory, leaving room for `record_bytes`; lets go of the mutex
  // meanwhile. True: something changed, look again.
  bool BackSlab(uint64_t record_bytes) PREFIXD_REQUIRES(mutex_);
  uint64_t PopulateStep() const;
  // Up to where a slab should be populated by now.
  uint64_t PopulateEnd(const Slab& slab, uint64_t ahead_bytes) const;
  bool WantsPopulating(uint32_t index) const PREFIXD_REQUIRES(mutex_);
  std::optional<uint32_t> SlabToPopulate() const PREFIXD_REQUIRES(mutex_);
  // Makes the memory of a free slab's records exactly this much.
  bool SizeRecords(uint32_t index, uint64_t bytes) PREFIXD_REQUIRES(mutex_);
  bool MakeRoom(uint64_t bytes, uint32_t keep) PREFIXD_REQUIRES(mutex_);
  // The highest free slab but `keep` that may leave service.
  std::optional<uint32_t> SlabToGiveBack(uint32_t keep) const PREFIXD_REQUIRES(mutex_);
  // That slab leaves service. False: there is none.
  bool GiveSlabBack(uint32_t keep) PREFIXD_REQUIRES(mutex_);
  void PunchRecords(uint32_t index, uint64_t keep_bytes) PREFIXD_REQUIRES(mutex_);
  void LeaveService(uint32_t index) PREFIXD_REQUIRES(mutex_);
  // Free slabs beyond the capacity leave; of the others, which must run empty.
  void Shrink() PREFIXD_REQUIRES(mutex_);

  // records.cc
  block::PageRecord* RecordOf(block::Extent extent) const;
  absl::Status BackSpaces(uint64_t bytes) PREFIXD_REQUIRES(mutex_);

  // adopt.cc
  absl::Status Adopt(uint64_t epoch) PREFIXD_EXCLUDES(mutex_);
  absl::Status AdoptSpaces() PREFIXD_REQUIRES(mutex_);
  absl::Status AdoptSlab(uint32_t index, uint64_t locked_slots) PREFIXD_REQUIRES(mutex_);
  bool AdoptRecord(block::Extent extent, uint64_t locked_slots) PREFIXD_REQUIRES(mutex_);
  void PunchIdle() PREFIXD_REQUIRES(mutex_);

  const Shape shape_;
  const std::unique_ptr<SharedFile> file_;  // null = private
  std::byte* const base_;                   // of the data; owned when private
  base::HoldGauge longest_hold_;
  mutable base::Mutex mutex_{&longest_hold_};
  std::vector<Slab> slabs_ PREFIXD_GUARDED_BY(mutex_);
  std::set<uint32_t> free_slabs_ PREFIXD_GUARDED_BY(mutex_);  // in service; the lowest is cut first
  std::set<uint32_t> idle_slabs_ PREFIXD_GUARDED_BY(mutex_);  // neither in service nor being backed
  // By extent size: slabs that serve it and have a free slot. The lowest is filled first, so that
  // the others run empty.
  std::map<uint64_t, std::set<uint32_t>> open_slabs_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t extent_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t extents_ PREFIXD_GUARDED_BY(mutex_) = 0;

  uint64_t capacity_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // limit of slabs in service and tables
  uint64_t in_service_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t backing_ PREFIXD_GUARDED_BY(mutex_) = 0;     // slabs that threads are giving memory to
  uint64_t populating_ PREFIXD_GUARDED_BY(mutex_) = 0;  // slabs that threads are populating
  base::CondVar backed_;                                // or populated
  std::atomic<bool> wants_populating_{false};           // written under the mutex
  uint64_t table_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t last_record_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // of the slab that was cut last
  bool tmpfs_full_ PREFIXD_GUARDED_BY(mutex_) = false;         // when it was last asked
  uint32_t retire_from_ PREFIXD_GUARDED_BY(mutex_) = 0;  // slabs from here on are to run empty
  mutable uint32_t retire_next_ PREFIXD_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<SpaceTable> spaces_ PREFIXD_GUARDED_BY(mutex_);  // null = private
  uint64_t spaces_backed_ PREFIXD_GUARDED_BY(mutex_) = 0;

  std::vector<FoundPage> found_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<HeldExtent> held_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::ram
