// Memory that processes share through a file, and what is asked of mappings.
//
// Thread-safe for ranges that do not overlap. Calls that fail say why in errno.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace prefixd::os {

// Memory of a fixed size that one other process, the borrower, writes and this one reads. Nothing
// that the borrower does to it raises a signal here. It has no name in any folder.
//
// linux: a memfd, sealed at its size, which this process maps. portable: a file in `folder` that
// has no name any more. No seal is in POSIX, so this process does not map what the borrower could
// shorten: it reads with pread.
class LentMemory {
 public:
  LentMemory() = default;
  ~LentMemory();  // gives the memory back to the machine, though the borrower has it mapped
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  // Takes `bytes` of memory, all of which are there when it returns. `name` is what lists of a
  // process's mappings show. `folder` is used by the portable flavour alone: a folder on a tmpfs
  // that only this user enters; empty: the system's folder for shared memory. Returns null, or the
  // name of the call that failed. Called once.
  const char* Make(const char* name, const std::string& folder, uint64_t bytes);
  // Opens a description of the borrower's own, writable, which holds a lock for as long as it is
  // held (held_file.h). The caller owns the descriptor; -1 on failure. At most one is given: the
  // portable flavour fails with EBUSY for a second.
  int OpenForBorrower();
  // Returns whether the borrower holds its description still. True also if the system does not
  // tell.
  bool IsHeld() const;
  // Returns the bytes at `offset`, of which the borrower may be writing any. They stand in `place`,
  // or somewhere else as long as this object lives. Null if the borrower made the memory shorter.
  // Requires: offset + bytes is within the size.
  const std::byte* Read(uint64_t offset, uint64_t bytes, std::byte* place) const {
    return base_ != nullptr ? base_ + offset : ReadFile(offset, bytes, place);
  }

 private:
  const std::byte* ReadFile(uint64_t offset, uint64_t bytes, std::byte* place) const;

  int fd_ = -1;
  int for_borrower_ = -1;            // portable: opened before the name went
  const std::byte* base_ = nullptr;  // linux
  uint64_t bytes_ = 0;
};

// Where memory without a folder of its own is made: "/dev/shm", or on Darwin a folder of this
// user's on its disk.
std::string FolderForSharedMemory();

// Whether the lender of memory can fix its size. Else whoever maps it relies on the lender.
bool SealsMemory();
// Returns whether nobody can make the memory behind the descriptor shorter, as far as the system
// can tell: always true where SealsMemory() is false.
bool KeepsItsSize(int fd);

// Gives a range of a file its memory or its blocks; the file grows if the range is behind its end.
// What is there stays. Returns false if there is no room; linux: nothing new is there then.
bool Allocate(int fd, uint64_t offset, uint64_t bytes);
// The same for a file that nobody else writes: on a filesystem that has no call for it, zeros are
// written.
bool AllocateAnywhere(int fd, uint64_t offset, uint64_t bytes);
// Whether a hole within a file gets its memory by Allocate. Else it does when it is touched, and
// Allocate only looks whether there is room.
bool BacksHoles();
// Gives the memory of a range back to the machine; the range reads as zeros, and the file keeps its
// size. Returns false if it could not, with the bytes as they were.
bool PunchHole(int fd, uint64_t offset, uint64_t bytes);

// Gives a range of a mapped file its memory in the smallest pages, and makes the page-table
// entries. Returns false if there is no room; a part may have its memory then. Requires: the range
// is page-aligned and AvoidHugePages was called for it.
bool AllocateSmallPages(int fd, std::byte* map, uint64_t offset, uint64_t bytes);
// Makes the page-table entries of a range that has memory. Does nothing where the system cannot.
void Populate(std::byte* at, uint64_t bytes);
// Whether the system lets a program choose huge pages; else these have no effect.
bool ChoosesHugePages();
void PreferHugePages(std::byte* at, uint64_t bytes);
void AvoidHugePages(std::byte* at, uint64_t bytes);
// Has the memory that a mapped file gets from now on come from these NUMA nodes in turn, whoever
// asks for it. A choice that was made before for the process or the file stays (numactl, a mount's
// mpol=). Returns false if the system cannot, or refuses. Requires: `at` is page-aligned.
bool SpreadOverNodes(std::byte* at, uint64_t bytes, const std::vector<unsigned>& nodes);
// Gives the memory of private anonymous pages back; they read as zeros.
void DropPrivatePages(std::byte* at, uint64_t bytes);

}  // namespace prefixd::os
