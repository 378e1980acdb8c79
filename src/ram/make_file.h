// Finds the arena's file, or makes it: checks, ownership by flock, replacement by a new inode.
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

#include "ram/shared_file.h"

namespace prefixd::ram {

struct OwnedFile {
  Descriptor fd;             // flocked, its header and sizes checked
  std::string replaced_why;  // of the file that was there
};
absl::StatusOr<OwnedFile> FindOrMakeFile(const SharedFile::Options& options);

// Sizes and offsets of a file for `slabs` slabs; the other fields stay.
void LayOut(uint64_t slab_bytes, uint64_t slabs, block::ArenaHeader* header);

}  // namespace prefixd::ram
