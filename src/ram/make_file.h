// Finds the arena's file with its locks, or makes it: checks, ownership, replacement by a new
// inode.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "ram/shared_file.h"
#include "ram/slot_locks.h"

namespace prefixd::ram {

// A region that uses huge pages, where the mount gives them, begins at a multiple of this.
inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

struct OwnedFile {
  base::Descriptor fd;               // its header and sizes checked
  std::unique_ptr<SlotLocks> locks;  // with the owner's lock held
  std::string replaced_why;          // why an earlier file was replaced; else empty
};
absl::StatusOr<OwnedFile> FindOrMakeFile(const SharedFile::Options& options);
// Returns whether nobody owns the arena at `path` at this moment.
bool CouldBeOwned(const std::string& path);

// Sets the sizes and offsets of a file for `slabs` slabs; the other fields stay.
void LayOut(uint64_t slab_bytes, uint64_t slabs, block::ArenaHeader* header);

}  // namespace prefixd::ram
