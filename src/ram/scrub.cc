// Scrubbing: zeroes the bytes of pages that are gone.
#include <algorithm>
#include <cstring>
#include <new>

#include "os/memory.h"
#include "ram/arena.h"
#include "ram/shared_file.h"

namespace prefixd::ram {

void Arena::ScrubSlot(uint32_t index, uint32_t slot) {
  Slab& slab = slabs_[index];
  const block::Extent extent{.offset = index * shape_.slab_bytes + slot * slab.extent_bytes,
                             .bytes = slab.extent_bytes};
  std::memset(data(extent), 0, extent.bytes);
  if (file_ != nullptr) new (RecordOf(extent)) block::PageRecord{};
  if (!slab.scrub.empty()) slab.scrub[slot] = false;
}

// Zeroes the free slots of a slab that serves a size, and what is behind its last slot.
void Arena::ScrubSlab(uint32_t index) {
  Slab& slab = slabs_[index];
  for (const uint32_t slot : slab.free_slots) ScrubSlot(index, slot);
  std::memset(base_ + index * shape_.slab_bytes + slab.covered_bytes(), 0,
              shape_.slab_bytes - slab.covered_bytes());
  const uint64_t records = slab.used.size() * sizeof(block::PageRecord);
  if (file_ == nullptr || slab.record_bytes <= records) return;
  std::memset(reinterpret_cast<std::byte*>(file_->records(index)) + records, 0,
              slab.record_bytes - records);
}

// Takes the mutex slab by slab, so that Allocate waits for one slab at most.
void Arena::Scrub(const std::vector<block::Extent>& keep) {
  std::vector<uint64_t> kept;
  for (const block::Extent& extent : keep) kept.push_back(extent.offset);
  std::ranges::sort(kept);
  for (uint32_t i = 0;; ++i) {
    base::MutexLock lock(mutex_);
    if (i >= slabs_.size()) return;
    Slab& slab = slabs_[i];
    if (!slab.in_service) continue;  // a hole
    if (slab.extent_bytes > 0) {
      slab.scrub.assign(slab.used.size(), false);
      for (uint32_t slot = 0; slot < slab.used.size(); ++slot) {
        const uint64_t offset = i * shape_.slab_bytes + slot * slab.extent_bytes;
        slab.scrub[slot] = slab.used[slot] && !std::ranges::binary_search(kept, offset);
      }
      ScrubSlab(i);
    } else if (file_ == nullptr) {
      os::DropPrivatePages(base_ + i * shape_.slab_bytes, shape_.slab_bytes);
    } else if (slab.populating || slab.pinned_by != 0) {
      std::memset(base_ + i * shape_.slab_bytes, 0, shape_.slab_bytes);
    } else {
      LeaveService(i);
    }
  }
}

}  // namespace prefixd::ram
