// The arena file as daemon and workers both map it: header, slots, slabs, spaces, page records,
// data.
//
// The daemon maps it writable, workers read-only. Fixed-width, little-endian, naturally aligned; a
// worker that does not know kArenaVersion uses Fetch instead. Offsets of regions stand in the
// header; a page's place travels as an offset from data_offset.
//
//   [0, 4096)          ArenaHeader, the owner's name
//   slots_offset       kArenaSlots x SlotRecord
//   slabs_offset       SlabRecord for every slab that the file has room for
//   spaces_offset      space table: SpaceRecords, one behind the other
//   records_offset     for each slab: room for one PageRecord for each extent of the smallest size
//   data_offset        slabs
//
// Regions and data take memory only where fallocate backed them; the file is sparse, sized once and
// never truncated, so nothing that was announced can raise SIGBUS. A worker must not touch what it
// was not told of, nor populate the whole mapping: a read fault in a hole takes memory of the
// tmpfs.
//
// Publishing a page: payload, record, then `state` by release store. Retiring: `state` first. What
// a crash leaves half-written has no published state or no true check, and is dropped at adoption.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace prefixd::block {

inline constexpr uint64_t kArenaMagic = 0x31414e5241584650;  // "PFXARNA1"
inline constexpr uint32_t kArenaVersion = 3;  // 3: spaces have places, and go; 2: serials
inline constexpr uint32_t kArenaSlots = 64;
inline constexpr uint32_t kNoSlot = ~uint32_t{0};
inline constexpr uint64_t kNoOffset = ~uint64_t{0};

struct ArenaHeader {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t header_bytes = 0;
  std::byte boot_id[16] = {};   // of the kernel: another boot, another life of tmpfs
  std::byte instance[16] = {};  // random, of this file
  std::byte key_id[16] = {};  // of the key that the hashes in it are made with; says nothing of it
  uint64_t file_bytes = 0;
  uint64_t slab_bytes = 0;
  uint64_t slabs = 0;  // that the file has room for; fewer are in service
  uint64_t slots_offset = 0, slabs_offset = 0;
  uint64_t spaces_offset = 0, spaces_bytes = 0;
  uint64_t records_offset = 0, slab_record_bytes = 0;  // of one slab's room for records
  uint64_t data_offset = 0;
  uint64_t check = 0;               // XXH3-64 of everything above
  std::atomic<uint64_t> epoch = 0;  // of the daemon that owns the file now
};
// The owner's name stands here, a line of text of up to 128 bytes (base/process.h): who finds the
// file locked asks whether that process lives. Zeros where an earlier prefixd made the file.
inline constexpr uint64_t kArenaOwnerOffset = 1024;
static_assert(sizeof(ArenaHeader) <= kArenaOwnerOffset);
static_assert(kArenaOwnerOffset + 128 <= 4096);  // the header's page

// Who holds a slot; the lock of its lock file (ram/slot_locks.h) says whether that process may
// still be reading. Every worker reads this: no session's id nor key stands here.
struct SlotRecord {
  std::atomic<uint64_t> in_use = 0;  // 1: what follows counts; written last
  std::byte key_hash[32] = {};       // of the session's key (ram/slots.h): proves a resume
  // Whom the files were given to, as base/peer.h has it.
  uint64_t pid = 0, pid_namespace = 0;
  uint32_t uid = 0;
  uint32_t lock_inode = 0;  // of its lock file, the low half
};
static_assert(sizeof(SlotRecord) == 64);

struct SlabRecord {
  std::atomic<uint64_t> extent_bytes = 0;  // 0 = cut into nothing
  std::atomic<uint64_t> in_service = 0;    // 1: fallocate gave it memory
};
static_assert(sizeof(SlabRecord) == 16);

// In front of an encoded identity in the space table. A space's place is its record's offset in the
// table, in units of 8 bytes.
struct SpaceRecord {
  // Low half: bytes up to the next record, a multiple of 8; 0 ends the table. High half: bytes of
  // the encoded identity that follows; 0: free room. Written last.
  std::atomic<uint64_t> extent = 0;
  // That no other space of the table had; a new one by Clear: records of pages with another one are
  // void.
  std::atomic<uint32_t> generation = 0;
  uint32_t reserved = 0;
  std::byte id[32] = {};
  uint64_t check = 0;  // XXH3-64 of id and identity
};
static_assert(sizeof(SpaceRecord) == 56);

// What changes while a page stays: written in place under the index's mutex.
struct PageMarks {
  std::atomic<uint64_t> holders = 0;   // bit s: a session of slot s may be reading; never too few
  std::atomic<int64_t> last_use = 0;   // microseconds since the Unix epoch, coarse
  std::atomic<uint64_t> ends[2] = {};  // bit k - 1: a sequence ends after k tokens of the block
};
static_assert(sizeof(PageMarks) == 32);

struct ContentRecord {
  uint32_t start = 0, length = 0, item_offset = 0, reserved = 0;
  std::byte digest[32] = {};
};
static_assert(sizeof(ContentRecord) == 48);
inline constexpr uint32_t kMaxRecordTokens = 128;
inline constexpr uint32_t kMaxRecordContent = 6;  // a block with more is not recovered from RAM

enum class RecordState : uint32_t { kFree = 0, kPublished = 0x42555031 };

// One page and the block it belongs to. Every page of a block repeats the block: a page is then
// published, moved and retired alone.
struct PageRecord {
  std::atomic<uint32_t> state = 0;  // RecordState
  uint32_t reserved = 0;
  uint64_t check = 0;  // XXH3-64 from `space` to the last token in use, or to the last key if any
  PageMarks marks;
  uint32_t space = 0;  // its place in the space table
  uint32_t space_generation = 0;
  uint16_t group = 0, part = 0, rung = 0, zero = 0;
  uint32_t tokens = 0;  // slots of the page
  uint32_t first_token = 0;
  uint32_t block_tokens = 0;  // tokens of the block that follow
  uint32_t content_keys = 0;
  uint64_t page_bytes = 0, payload_bytes = 0;
  uint64_t page_check = 0;  // block::PageCheck of the payload
  std::byte hash[16] = {}, parent[16] = {};
  uint64_t serial = 0;         // that no other block of the cache ever had; 0: it is never a parent
  uint64_t parent_serial = 0;  // 0: the first block's
  uint32_t token[kMaxRecordTokens] = {};
  ContentRecord content[kMaxRecordContent] = {};
  std::byte unused[72] = {};
};
static_assert(sizeof(PageRecord) == 1024);

}  // namespace prefixd::block
