// SharedFile: the arena's file on tmpfs, found or made, owned, mapped writable. Knows the
// layout and the system calls; Arena decides what they are for.
//
// Backing, Punch and the pointers: thread-safe for ranges that do not overlap.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/file_lock.h"
#include "block/arena_file.h"
#include "block/extent.h"

namespace prefixd::ram {

struct OwnedFile;
class SlotLocks;

class SharedFile {
 public:
  struct Options {
    std::string path;
    uint64_t capacity_bytes = 0;
    uint64_t max_capacity_bytes = 0;
    uint64_t slab_bytes = 0;  // of a new file
    base::LockWait lock_wait{};
    base::Hash128 key_id{};         // of the key of its hashes; a file of another key is replaced
    std::vector<unsigned> nodes{};  // as Arena::Options, empty if the machine has one
  };
  // Errors as Arena::Open. The header's epoch is still that of the previous owner.
  static absl::StatusOr<std::unique_ptr<SharedFile>> Open(const Options& options);
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  // Returns the bytes of the tables that every file backs at once: from its begin through the first
  // page of the space table.
  static uint64_t FixedBytes(const block::ArenaHeader& header);
  // Returns the least capacity for slabs of this size: fixed tables, one slab, and its records if
  // it is cut into the smallest extents.
  static uint64_t LeastCapacity(uint64_t slab_bytes, uint64_t slabs);

  int fd() const { return fd_.get(); }
  // Returns the bytes that the tmpfs lets the file have: what it has and what is free. nullopt
  // without a limit.
  std::optional<uint64_t> RoomBytes() const;
  const std::string& replaced_why() const { return replaced_why_; }
  const std::string& not_spread_why() const { return not_spread_why_; }
  block::ArenaHeader* header() const { return At<block::ArenaHeader>(0); }
  block::SlotRecord* slots() const { return At<block::SlotRecord>(header()->slots_offset); }
  block::SlabRecord* slab(uint64_t index) const {
    return At<block::SlabRecord>(header()->slabs_offset) + index;
  }
  std::byte* spaces() const { return map_ + header()->spaces_offset; }
  uint64_t RecordsOffset(uint64_t slab) const {
    return header()->records_offset + slab * header()->slab_record_bytes;
  }
  block::PageRecord* records(uint64_t slab) const {
    return At<block::PageRecord>(RecordsOffset(slab));
  }
  uint64_t DataOffset(uint64_t slab) const {
    return header()->data_offset + slab * header()->slab_bytes;
  }
  std::byte* data() const { return map_ + header()->data_offset; }

  // Gives a range of data its memory, in huge pages where the mount has them. Parts that have
  // memory keep it. Returns false if the tmpfs has no room; nothing new is backed then.
  bool BackData(uint64_t offset, uint64_t bytes) const;
  // Returns whether BackData is worth trying, since it takes long to fail.
  bool HasRoom(uint64_t bytes) const;
  // Does the same for tables and records, in pages of 4 KiB: a huge page would bring memory that
  // nobody accounts for. On failure a part may be backed.
  bool BackTables(uint64_t offset, uint64_t bytes) const;
  // Gives the memory of a range back to the machine; the range reads as zeros.
  void Punch(uint64_t offset, uint64_t bytes) const;
  // Makes the page-table entries of a backed range ahead of use. Does nothing if the kernel cannot.
  void Populate(uint64_t offset, uint64_t bytes) const;
  SlotLocks& locks() const { return *locks_; }
  // Opens a new read-only description of the file.
  absl::StatusOr<base::Descriptor> OpenReadOnly() const;

 private:
  SharedFile(const std::string& path, OwnedFile file, std::byte* map, uint64_t bytes);
  template <typename T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(map_ + offset);
  }
  const std::string path_;
  const base::Descriptor fd_;
  const std::unique_ptr<SlotLocks> locks_;
  std::byte* const map_;
  const uint64_t bytes_;
  const std::string replaced_why_;
  std::string not_spread_why_;
};

}  // namespace prefixd::ram
