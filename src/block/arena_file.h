// The arena file, which the daemon and the workers map: header, slots, slabs, spaces, page records,
// data.
//
// The daemon maps it writable, workers map it read-only. Fields are fixed-width, little-endian and
// naturally aligned. A worker that does not know kArenaVersion uses Fetch instead. The header holds
// the offsets of the regions. A page's place is sent as an offset from data_offset.
//
//   [0, 4096)          ArenaHeader and the owner's name
//   slots_offset       kArenaSlots x SlotRecord
//   slabs_offset       SlabRecord for every slab that the file has room for
//   spaces_offset      space table: SpaceRecords, one after the other
//   records_offset     for each slab: room for one PageRecord per extent of the smallest size
//   data_offset        slabs
//
// Regions and data take memory only where fallocate backed them. The file is sparse, sized once and
// never truncated, so nothing that was announced to a worker can raise SIGBUS. A worker must not
// touch what was not announced to it, nor populate the whole mapping: a read fault in a hole takes
// memory of the tmpfs.
//
// The daemon publishes a page by writing the payload, then the record, then `state` with a release
// store. It retires a page by changing `state` first. What a crash leaves half-written has no
// published state or a wrong check, and adoption drops it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace prefixd::block {

inline constexpr uint64_t kArenaMagic = 0x31414e5241584650;  // "PFXARNA1"
// 5 counts slabs' times of service, 4 guards holders and slab entries, 3 adds places and removal of
// spaces, 2 adds serials.
inline constexpr uint32_t kArenaVersion = 5;
inline constexpr uint32_t kArenaSlots = 64;
inline constexpr uint32_t kNoSlot = ~uint32_t{0};
inline constexpr uint64_t kNoOffset = ~uint64_t{0};

struct ArenaHeader {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t header_bytes = 0;
  std::byte boot_id[16] = {};   // the kernel's; after another boot the tmpfs is a new one
  std::byte instance[16] = {};  // random, unique to this file
  std::byte key_id[16] = {};    // identifies the key of the hashes without revealing it
  uint64_t file_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t slabs = 0;  // slabs that the file has room for; fewer are in service
  uint64_t slots_offset = 0, slabs_offset = 0;
  uint64_t spaces_offset = 0, spaces_bytes = 0;
  uint64_t records_offset = 0, slab_record_bytes = 0;  // the latter: room for a slab's records
  uint64_t data_offset = 0;
  uint64_t check = 0;               // XXH3-64 of everything above
  std::atomic<uint64_t> epoch = 0;  // of the daemon that owns the file now
};
// Where the owner's name is, a line of text of up to 128 bytes (base/process.h). A daemon that
// finds the file locked checks whether that process lives. Zeros if an earlier prefixd made the
// file.
inline constexpr uint64_t kArenaOwnerOffset = 1024;
static_assert(sizeof(ArenaHeader) <= kArenaOwnerOffset);
static_assert(kArenaOwnerOffset + 128 <= 4096);  // within the header's page

// The session that holds a slot. The lock of its lock file (ram/slot_locks.h) tells whether its
// process may still be reading. Every worker reads this: it holds neither session id nor key.
struct SlotRecord {
  std::atomic<uint64_t> in_use = 0;  // 1: the other fields are valid; written last
  std::byte key_hash[32] = {};       // of the session's key (ram/slots.h); a resume must match it
  // The process that the descriptors were given to, as base/peer.h describes it.
  uint64_t pid = 0, pid_namespace = 0;
  uint32_t uid = 0;
  uint32_t lock_inode = 0;  // low half of the lock file's inode
};
static_assert(sizeof(SlotRecord) == 64);

// A value beside its complement, so that zeros, noise or a flipped bit do not pass for another
// value.
constexpr uint64_t Guarded(uint32_t value) { return uint64_t{~value} << 32 | value; }
constexpr bool IsGuarded(uint64_t word) { return word == Guarded(static_cast<uint32_t>(word)); }

// Both words are Guarded().
struct SlabRecord {
  std::atomic<uint64_t> extent_units = Guarded(0);  // of 4,096 bytes; 0 = not cut into extents
  // Odd: fallocate gave the slab memory. Counts the times that it got memory and lost it, the
  // latter before its hole is punched: so a worker that has pinned the memory for a device sees
  // that the slab has other memory now. No page of a slab that loses its memory is leased.
  std::atomic<uint64_t> service = Guarded(0);
};
static_assert(sizeof(SlabRecord) == 16);
constexpr bool InService(uint64_t service) { return IsGuarded(service) && service % 2 != 0; }
constexpr uint64_t NextService(uint64_t service) {
  return Guarded(static_cast<uint32_t>(service) + 1);
}

// The record in front of each encoded identity in the space table. A space's place is the offset of
// its record in the table, in units of 8 bytes.
struct SpaceRecord {
  // Low half: bytes up to the next record, a multiple of 8; 0 ends the table. High half: bytes of
  // the encoded identity that follows; 0 means free room. Written last.
  std::atomic<uint64_t> extent = 0;
  // A number that no other space of the table had. Clear gives the space a new one. Page records
  // with another generation are void.
  std::atomic<uint32_t> generation = 0;
  uint32_t reserved = 0;
  std::byte id[32] = {};
  uint64_t check = 0;  // XXH3-64 of the identity, seeded with XXH3-64 of `id`
};
static_assert(sizeof(SpaceRecord) == 56);

// Fields that change while a page stays. The daemon writes them in place under the index's mutex.
struct PageMarks {
  std::atomic<uint64_t> holders = 0;  // bit s: slot s's session may be reading; none is missing
  std::atomic<uint64_t> others = ~uint64_t{0};  // the complement of `holders`
  std::atomic<int64_t> last_use = 0;            // microseconds since the Unix epoch, coarse
  std::atomic<uint64_t> ends[2] = {};  // bit k - 1: a sequence ends after k tokens of the block

  void SetHolders(uint64_t slots) {
    holders.store(slots, std::memory_order_release);
    others.store(~slots, std::memory_order_release);
  }
  // The holders, as a later daemon reads them: all 64 slots if the two words disagree, because one
  // is damaged or its writer was killed between them.
  uint64_t ReadHolders() const {
    const uint64_t slots = holders.load(std::memory_order_acquire);
    return others.load(std::memory_order_acquire) == ~slots ? slots : ~uint64_t{0};
  }
};
static_assert(sizeof(PageMarks) == 40);

struct ContentRecord {
  uint32_t start = 0, length = 0, item_offset = 0, reserved = 0;
  std::byte digest[32] = {};
};
static_assert(sizeof(ContentRecord) == 48);
inline constexpr uint32_t kMaxRecordTokens = 128;
inline constexpr uint32_t kMaxRecordContent = 6;  // a block with more is not recovered from RAM

enum class RecordState : uint32_t { kFree = 0, kPublished = 0x42555031 };

// One page and the block it belongs to. Every page of a block repeats the block, so that each page
// is published, moved and retired alone.
struct PageRecord {
  std::atomic<uint32_t> state = 0;  // RecordState
  uint32_t reserved = 0;
  uint64_t check = 0;  // XXH3-64 from `space` to the last token in use, or to the last key if any
  PageMarks marks;
  uint32_t space = 0;  // place in the space table
  uint32_t space_generation = 0;
  uint16_t group = 0, part = 0, rung = 0, zero = 0;
  uint32_t tokens = 0;  // slots of the page
  uint32_t first_token = 0;
  uint32_t block_tokens = 0;  // tokens of the block that are in `token`
  uint32_t content_keys = 0;
  uint64_t page_bytes = 0, payload_bytes = 0;
  uint64_t page_check = 0;  // block::PageCheck of the payload
  std::byte hash[16] = {}, parent[16] = {};
  uint64_t serial = 0;         // unique in the cache for all time; 0 if the block is never a parent
  uint64_t parent_serial = 0;  // 0 for the first block of a sequence
  uint32_t token[kMaxRecordTokens] = {};
  ContentRecord content[kMaxRecordContent] = {};
  std::byte unused[64] = {};
};
static_assert(sizeof(PageRecord) == 1024);

}  // namespace prefixd::block
