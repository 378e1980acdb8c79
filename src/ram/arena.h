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
// memory, and leaves service when holes are punched into them. Private arena: anonymous memory, no
// records, nothing survives.
#pragma once
#include <array>
#include <atomic>
#include <chrono>
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
#include "ram/unpin_patience.h"

namespace prefixd::ram {

class SharedFile;
class SlotLocks;
class SpaceTable;

struct ArenaStats {
  // Bytes of the whole slabs that fit into the capacity beside the present table_bytes.
  uint64_t capacity_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t slabs_in_use = 0, slabs_free = 0;
  uint64_t slabs_in_service = 0;  // slabs that have memory
  uint64_t extent_bytes = 0;      // allocated extents
  uint64_t extents = 0;
  uint64_t table_bytes = 0;                 // header, slots, space table, records that have memory
  std::chrono::nanoseconds longest_hold{};  // of the mutex, since Open
};

// What workers say they have pinned for devices, in whole slabs.
struct DevicePins {
  uint64_t bytes = 0;          // pinned by anybody, each slab once
  uint64_t awaited_bytes = 0;  // of these, asked back; part of the capacity until they are unpinned
  uint64_t kept_bytes = 0;     // of these, asked back in vain; beside the capacity
  std::array<uint64_t, block::kArenaSlots> slot_bytes{};  // by slot
};

struct SlabRange {
  uint64_t begin = 0, end = 0;  // bytes from the arena's start
  uint64_t extent_bytes = 0;    // allocated in it
};

// What the record of a page says.
struct PageContent {
  block::PageName name;  // name.space stands in the space table
  uint32_t space = 0;    // the place that AddSpace returned
  block::BlockHash parent{};
  uint64_t serial = 0, parent_serial = 0;  // of the block and its parent (index/node.h)
  uint32_t first_token = 0;
  uint64_t page_bytes = 0, payload_bytes = 0, check = 0;
  block::SequenceView tokens;  // of the block; borrowed for the call
  std::vector<uint32_t> ends;  // token counts at which a sequence ends
  int64_t last_use = 0;
};

// A page that an earlier daemon published. Its extent is allocated: the caller keeps it or Frees
// it. Move a FoundPage, do not copy it.
struct FoundPage {
  block::Extent extent;
  // Includes name.space. Its tokens borrow from the record: valid until the extent is freed.
  PageContent content;
  std::vector<block::ContentKey> keys;  // content.tokens borrows them
  uint64_t holders = 0;                 // bit s: slot s may be reading, its lock is held
};
// An extent whose page has no valid name (its space was cleared, or its record is damaged) but
// which slots still hold. It is allocated: the caller Frees it when none of the slots is locked.
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
    // A multiple of 4 KiB, at least 64 KiB, at most the capacity. 0 = a 32nd of the capacity from
    // 4 MiB to 16 MiB, or a 64th up to 64 MiB if that is more; in a shared arena at most half of
    // the capacity, in whole huge pages from 2 MiB on, and so that little of the capacity is left
    // over. A file that is found keeps its own.
    uint64_t slab_bytes = 0;
    std::string path = {};  // of the file; empty = private
    uint64_t epoch = 0;     // of this daemon
    // The largest capacity that the file has room for, so that Resize needs no new file; at least
    // the capacity. 0 = 64 times the capacity, at most the machine's memory. A file that is found
    // keeps its own, which then limits the capacity.
    uint64_t max_capacity_bytes = 0;
    base::LockWait lock_wait{};  // for the lock of a file whose owner is ending
    base::Hash128 key_id{};      // id of the key that block hashes are made with
    // Shared: the NUMA nodes that its memory comes from in turn, unless numactl or the mount chose
    // others; empty: from wherever the kernel takes it. nullopt: all, if there are several.
    std::optional<std::vector<unsigned>> nodes = {};
    // How long a slab that leaves service keeps its memory while a worker has it pinned.
    std::chrono::milliseconds unpin_within{2000};
  };
  // Opens an arena. ResourceExhausted if the kernel refuses the mapping. InvalidArgument if the
  // capacity is below one slab of 64 KiB (shared: with its tables) or slab_bytes is out of its
  // range. Shared: Unavailable when another process owns the file; FailedPrecondition when the
  // folder is no tmpfs or something else stands under the path; ResourceExhausted when the tmpfs
  // has no room for a quarter of the capacity. A file of another kernel boot, version, key or
  // shape, or a damaged one, is replaced by a new one, and nothing is found.
  static absl::StatusOr<std::unique_ptr<Arena>> Open(const Options& options);
  // Returns how many pages of one size an arena of this capacity and default slabs has room for, if
  // it holds no others. 0 if such a page does not fit into a slab.
  static uint64_t PagesOf(uint64_t capacity_bytes, uint64_t page_bytes, bool shared);
  // Returns the slab_bytes of an arena of this capacity that is made without a size of its own.
  static uint64_t DefaultSlab(uint64_t capacity_bytes, bool shared);
  ~Arena();  // the file stays
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  bool shared() const { return file_ != nullptr; }
  // Returns why the arena that was there could not be used; empty if there was none or it was
  // adopted.
  const std::string& replaced_why() const;
  // Returns why the system refused to take the memory from Options::nodes in turn; else empty.
  const std::string& not_spread_why() const;
  // Returns what the file held, coldest first. Call it once, before the first Allocate. Leaves out
  // records that are torn, void by Clear or larger than their extent; their extents are free unless
  // TakeHeld returns them.
  std::vector<FoundPage> TakeFound();
  // Returns what TakeFound leaves out although a process may be reading it. Call it once.
  std::vector<HeldExtent> TakeHeld();
  std::vector<FoundSpace> Spaces() const PREFIXD_EXCLUDES(mutex_);  // by id

  // Returns the class of a page: the extent bytes that Allocate would take. 0 if full_page_bytes
  // does not fit into a slab.
  uint64_t ExtentBytes(uint64_t page_bytes, uint64_t full_page_bytes) const;
  // Returns 4 KiB aligned space, which the caller owns until Free(). Its contents are undefined,
  // and zero behind the page. ResourceExhausted, saying how much is in use, if no slab has room:
  // the caller evicts and tries again. InvalidArgument if a full page does not fit into a slab.
  // Requires: 0 < page_bytes <= full_page_bytes.
  absl::StatusOr<block::Extent> Allocate(uint64_t page_bytes, uint64_t full_page_bytes)
      PREFIXD_EXCLUDES(mutex_);
  // Returns the smallest free extent of any class that holds the page, for when every slab serves
  // other sizes and none can be emptied. nullopt if there is none.
  std::optional<block::Extent> AllocateLarger(uint64_t page_bytes) PREFIXD_EXCLUDES(mutex_);
  // Frees an extent, after it retires the record. Aborts, naming the extent, if it is not allocated
  // or not as it was given out: that is our own bug.
  void Free(block::Extent extent) PREFIXD_EXCLUDES(mutex_);
  // Zeroes all memory in service that no allocated extent covers, records too, and gives free slabs
  // back to the kernel. Extents that are allocated now and are not in `keep` are zeroed when they
  // are freed.
  void Scrub(const std::vector<block::Extent>& keep) PREFIXD_EXCLUDES(mutex_);
  // Valid until Free(extent). The arena does not order readers and writers of these bytes.
  std::byte* data(block::Extent extent) const { return base_ + extent.offset; }

  // --- records; these calls do nothing in a private arena ---
  // Returns the place of the space in the table; adds the space if it is new. ResourceExhausted if
  // the table is full: the space's pages are then not recorded (place kNoSpace).
  static constexpr uint32_t kNoSpace = ~uint32_t{0};
  absl::StatusOr<uint32_t> AddSpace(const block::SpaceId& id, const std::string& identity)
      PREFIXD_EXCLUDES(mutex_);
  // Removes a space, whose place may become another space's. Requires: the space has no page, and
  // nobody is about to Publish one. Records of it that are left are void for the next daemon.
  void RemoveSpace(uint32_t space) PREFIXD_EXCLUDES(mutex_);
  // Makes every record of the space so far void for the next daemon.
  void ClearSpace(uint32_t space) PREFIXD_EXCLUDES(mutex_);
  // Writes the record of an allocated extent whose payload is in place, then its state. Retires an
  // earlier record first if a page is published again (moved content, new name). Sets the marks
  // last_use and ends; holders stay. A block of more than kMaxRecordTokens or kMaxRecordContent, or
  // of kNoSpace, gets no record, only marks. Two threads must not publish the same extent.
  void Publish(block::Extent extent, const PageContent& content) PREFIXD_EXCLUDES(mutex_);
  // Returns the marks of the extent's record; nullptr in a private arena. Valid until Free(extent).
  block::PageMarks* marks(block::Extent extent) const;

  // --- slabs ---
  // Returns the slab with the fewest allocated bytes among those that serve another extent size
  // than `extent_bytes`: emptying it gives the wanted size a slab. The bytes that
  // `spared` has for a slab count before all others. nullopt if there is none.
  std::optional<SlabRange> CheapestSlabToEmpty(uint64_t extent_bytes,
                                               std::span<const uint64_t> spared = {}) const
      PREFIXD_EXCLUDES(mutex_);
  // Returns a slab to empty among those in service beyond the capacity (after Resize, or with a
  // smaller budget than the last daemon's). Each call returns the next one, so that a slab with
  // held pages does not keep the others. Nothing is allocated in these slabs; free ones give their
  // memory back at once. nullopt if there is none.
  std::optional<SlabRange> SlabToRetire() const PREFIXD_EXCLUDES(mutex_);
  // Changes the capacity. Slabs beyond it run empty: SlabToRetire names them. Offsets and mappings
  // stay. FailedPrecondition for a private arena; InvalidArgument if it is less than one slab with
  // its tables, or more than the file has tables and address space for.
  absl::Status Resize(uint64_t capacity_bytes) PREFIXD_EXCLUDES(mutex_);
  // Returns the most that Resize takes. Means nothing for a private arena.
  uint64_t most_capacity_bytes() const;
  // Takes `bytes` off the capacity, after free slabs left service for them. Returns false, with the
  // capacity as it was, if what is allocated needs it. Private arenas too can do this.
  bool GiveUp(uint64_t bytes) PREFIXD_EXCLUDES(mutex_);
  // Returns to the capacity what GiveUp took. Requires: it did.
  void TakeBack(uint64_t bytes) PREFIXD_EXCLUDES(mutex_);
  // Returns the bytes of slabs in service and tables beyond the capacity.
  uint64_t OverBytes() const PREFIXD_EXCLUDES(mutex_);
  // Returns the bytes that the tmpfs lets the file have, now. nullopt if that is the capacity or
  // more, or the arena is private.
  std::optional<uint64_t> LimitedTo() const PREFIXD_EXCLUDES(mutex_);

  // --- slabs that workers have pinned for devices (device_pins.cc) ---
  // Replaces what the slot's worker has pinned: bit i % 8 of byte i / 8 is slab i, bits beyond are
  // ignored. Slabs that waited for this worker alone lose their memory now.
  void SetDevicePins(uint32_t slot, std::span<const std::byte> slabs) PREFIXD_EXCLUDES(mutex_);
  // The slot's worker has gone: nothing is pinned, and the next one has the full time to unpin.
  void ForgetDevicePins(uint32_t slot) PREFIXD_EXCLUDES(mutex_);
  DevicePins device_pins() const PREFIXD_EXCLUDES(mutex_);
  uint64_t slabs() const { return shape_.slabs; }  // that there is address space for
  struct Leaving {
    bool waits = false;       // slabs are waiting for workers: call again soon
    uint64_t late_slots = 0;  // bit s: slot s's worker did not unpin in time, since the last call
    base::Deadline until{};   // if `waits`: when a worker is late next
  };
  // Takes the memory of slabs for which workers had their time. A worker that was late is not
  // waited for again before its SetDevicePins leaves out all that was taken, and then half as long.
  Leaving EndLeaving() PREFIXD_EXCLUDES(mutex_);

  // Gives one more slab its memory ahead of need, so that Allocate need not wait for fallocate.
  // Returns false if every slab that fits is in service, or the tmpfs is full.
  bool BackOneMore() PREFIXD_EXCLUDES(mutex_);
  // Maps the memory of a slab in service a step (an eighth of a slab) ahead of where it is filled,
  // so that a writer need not fault page by page. Changes no bytes. Leaves alone memory that no
  // extent covers, and slabs that were adopted with pages. Returns false if nothing is left to do,
  // or another thread is doing it.
  bool PopulateAhead() PREFIXD_EXCLUDES(mutex_);
  // Returns whether PopulateAhead has something to do; takes no lock.
  bool wants_populating() const { return wants_populating_.load(std::memory_order_relaxed); }

  ArenaStats stats() const PREFIXD_EXCLUDES(mutex_);
  // Opens a new read-only description of the file for a worker; the kernel refuses a writable
  // mapping of it. The caller owns the descriptor.
  absl::StatusOr<int> OpenReadOnly() const;
  int fd() const;                           // -1 = private
  block::ArenaHeader* header() const;       // nullptr = private
  block::SlotRecord* slot_records() const;  // kArenaSlots; nullptr = private
  SlotLocks* slot_locks() const;            // nullptr = private
  uint64_t data_offset() const;             // where offset 0 is in the file; 0 = private
  uint64_t file_bytes() const;              // 0 = private

 private:
  struct Slab {
    bool in_service = false;
    uint64_t record_bytes = 0;     // how much of its room for records has memory
    uint64_t extent_bytes = 0;     // 0 = free
    uint64_t filled_bytes = 0;     // up to the end of the highest extent given out since the cut
    uint64_t populated_bytes = 0;  // from its begin: mapped, or left to whoever fills it
    bool populating = false;       // by a thread, without the mutex: the slab must stay in service
    uint64_t pinned_by = 0;        // bit s: slot s's worker says that a device has it pinned
    std::vector<uint32_t> free_slots;  // last freed at the end, reused first: warm lines
    std::vector<bool> used;            // by slot
    std::vector<bool> scrub;           // by slot: to be zeroed when it is freed; empty = none
    uint64_t used_slots() const { return used.size() - free_slots.size(); }
    uint64_t covered_bytes() const { return used.size() * extent_bytes; }  // by extents
  };
  struct Shape {
    uint64_t capacity_bytes = 0;  // at Open
    uint64_t slab_bytes = 0;
    uint64_t slabs = 0;  // slabs that there is address space for
  };

  Arena(const Shape& shape, std::byte* base, std::unique_ptr<SharedFile> file,
        std::chrono::milliseconds unpin_within);
  static absl::StatusOr<std::unique_ptr<Arena>> OpenPrivate(const Options& options);
  static absl::StatusOr<std::unique_ptr<Arena>> OpenShared(const Options& options);

  // arena.cc: extents.
  // Returns a slab that has a free slot of this size; cuts one if need be. nullopt if no slab in
  // service can serve it.
  std::optional<uint32_t> SlabFor(uint64_t extent_bytes) PREFIXD_REQUIRES(mutex_);
  bool HasFreeSlab() const PREFIXD_REQUIRES(mutex_);
  void Cut(uint32_t index, uint64_t extent_bytes) PREFIXD_REQUIRES(mutex_);
  void InitRecords(uint32_t index, uint64_t extents) PREFIXD_REQUIRES(mutex_);
  void WriteExtentBytes(uint32_t index, uint64_t extent_bytes) PREFIXD_REQUIRES(mutex_);
  block::Extent Take(uint32_t index) PREFIXD_REQUIRES(mutex_);
  absl::Status Full(uint64_t extent_bytes) const PREFIXD_REQUIRES(mutex_);
  void ZeroBehind(uint64_t page_bytes, block::Extent extent);
  // Returns the slot of an extent in its slab. Aborts if there is no such extent.
  uint32_t SlotOf(block::Extent extent) const PREFIXD_REQUIRES(mutex_);
  void CloseSlab(uint32_t index) PREFIXD_REQUIRES(mutex_);  // takes it out of open_slabs_
  void EmptySlab(uint32_t index) PREFIXD_REQUIRES(mutex_);  // frees it: it has no extent
  SlabRange RangeOf(uint32_t index) const PREFIXD_REQUIRES(mutex_);

  // scrub.cc: zeroes what belonged to pages that are gone.
  void ScrubSlab(uint32_t index) PREFIXD_REQUIRES(mutex_);
  void ScrubSlot(uint32_t index, uint32_t slot) PREFIXD_REQUIRES(mutex_);

  // service.cc: which slabs and records have memory.
  uint64_t BackedBytes() const PREFIXD_REQUIRES(mutex_);
  uint64_t StayingBytes() const PREFIXD_REQUIRES(mutex_);  // BackedBytes less slabs that leave
  bool Fits(uint64_t more_bytes) const PREFIXD_REQUIRES(mutex_);
  uint64_t RecordBytes(uint64_t extent_bytes) const;
  // Gives one more slab its memory and leaves room for `record_bytes`; releases the mutex
  // meanwhile. Returns true if something changed and the caller should look again.
  bool BackSlab(uint64_t record_bytes) PREFIXD_REQUIRES(mutex_);
  bool TakePrivateSlab() PREFIXD_REQUIRES(mutex_);
  uint64_t PopulateStep() const;
  // Returns up to where a slab should be populated: `ahead_bytes` ahead of what is filled.
  uint64_t PopulateEnd(const Slab& slab, uint64_t ahead_bytes) const;
  bool WantsPopulating(uint32_t index) const PREFIXD_REQUIRES(mutex_);
  std::optional<uint32_t> SlabToPopulate() const PREFIXD_REQUIRES(mutex_);
  // Makes the memory of a free slab's records exactly `bytes`. Returns false if there is no room.
  bool SizeRecords(uint32_t index, uint64_t bytes) PREFIXD_REQUIRES(mutex_);
  bool MakeRoom(uint64_t bytes, uint32_t keep) PREFIXD_REQUIRES(mutex_);
  // Returns the highest free slab other than `keep` that may leave service.
  std::optional<uint32_t> SlabToGiveBack(uint32_t keep) const PREFIXD_REQUIRES(mutex_);
  // Takes that slab out of service. Returns false if there is none.
  bool GiveSlabBack(uint32_t keep) PREFIXD_REQUIRES(mutex_);
  void PunchRecords(uint32_t index, uint64_t keep_bytes) PREFIXD_REQUIRES(mutex_);
  // The slab keeps its memory while it waits for workers that have it pinned (leaving_).
  void LeaveService(uint32_t index) PREFIXD_REQUIRES(mutex_);
  // Returns whether slabs that wait for workers are all that keeps `bytes` from fitting.
  bool LeavesRoom(uint64_t bytes) const PREFIXD_REQUIRES(mutex_);
  // Waits until a slab was backed or populated, or has left.
  void AwaitSlab() PREFIXD_REQUIRES(mutex_);
  // Tells the file's readers that the slab got its memory or loses it.
  void TellService(uint32_t index) PREFIXD_REQUIRES(mutex_);
  // Takes free slabs beyond the capacity out of service, and notes in retire_from_ which others
  // must run empty.
  void Shrink() PREFIXD_REQUIRES(mutex_);

  // device_pins.cc
  // A slab that is to leave.
  struct Leaver {
    base::Deadline until;      // who has not unpinned it then is late
    uint64_t asked_slots = 0;  // bit s: slot s's worker had it pinned
  };
  // Asks those who have a slab pinned to unpin it.
  void Ask(uint32_t index) PREFIXD_REQUIRES(mutex_);
  bool IsAwaited(uint32_t index) const PREFIXD_REQUIRES(mutex_);  // a worker is to unpin it
  // When the next of leaving_ is late. Requires: there is one.
  base::Deadline NextLate() const PREFIXD_REQUIRES(mutex_);
  void TakeMemory(uint32_t index) PREFIXD_REQUIRES(mutex_);
  void EndLeavingLocked() PREFIXD_REQUIRES(mutex_);

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
  const std::chrono::milliseconds unpin_within_;
  const std::unique_ptr<SharedFile> file_;  // null = private
  std::byte* const base_;                   // start of the data; owned if private
  base::HoldGauge longest_hold_;
  mutable base::Mutex mutex_{&longest_hold_};
  std::vector<Slab> slabs_ PREFIXD_GUARDED_BY(mutex_);
  std::set<uint32_t> free_slabs_ PREFIXD_GUARDED_BY(mutex_);  // in service; the lowest is cut first
  std::set<uint32_t> idle_slabs_ PREFIXD_GUARDED_BY(mutex_);  // in no other state: without memory
  // Out of service, but with their memory until workers have unpinned it, or until then at most.
  std::map<uint32_t, Leaver> leaving_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t late_slots_ PREFIXD_GUARDED_BY(mutex_) = 0;      // are not waited for
  uint64_t new_late_slots_ PREFIXD_GUARDED_BY(mutex_) = 0;  // of them, not told by EndLeaving
  std::array<UnpinPatience, 64> patience_ PREFIXD_GUARDED_BY(mutex_);  // by slot
  // By extent size: slabs that serve it and have a free slot. The lowest is filled first, so that
  // the others run empty.
  std::map<uint64_t, std::set<uint32_t>> open_slabs_ PREFIXD_GUARDED_BY(mutex_);
  uint64_t extent_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t extents_ PREFIXD_GUARDED_BY(mutex_) = 0;

  uint64_t capacity_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // limit of slabs in service and tables
  uint64_t in_service_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t backing_ PREFIXD_GUARDED_BY(mutex_) = 0;     // slabs that threads are giving memory to
  uint64_t populating_ PREFIXD_GUARDED_BY(mutex_) = 0;  // slabs that threads are populating
  base::CondVar backed_;                                // a slab was backed or populated, or left
  std::atomic<bool> wants_populating_{false};           // written under the mutex
  uint64_t table_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;
  uint64_t last_record_bytes_ PREFIXD_GUARDED_BY(mutex_) = 0;  // of the slab that was cut last
  bool tmpfs_full_ PREFIXD_GUARDED_BY(mutex_) = false;         // as of the last try to back memory
  uint32_t retire_from_ PREFIXD_GUARDED_BY(mutex_) = 0;  // slabs from here on are to run empty
  mutable uint32_t retire_next_ PREFIXD_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<SpaceTable> spaces_ PREFIXD_GUARDED_BY(mutex_);  // null = private
  uint64_t spaces_backed_ PREFIXD_GUARDED_BY(mutex_) = 0;

  std::vector<FoundPage> found_ PREFIXD_GUARDED_BY(mutex_);
  std::vector<HeldExtent> held_ PREFIXD_GUARDED_BY(mutex_);
};

}  // namespace prefixd::ram
