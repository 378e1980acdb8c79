// Which slabs and records have memory: takes them into service and out of it, within the capacity.
//
// The capacity limits slabs in service (and on their way into it) plus tables. Code that makes one
// of them grow asks Fits() first, under the mutex. A private arena has no tables; its slabs are in
// service from the start and leave it for GiveUp alone.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/size.h"
#include "os/memory.h"
#include "ram/arena.h"
#include "ram/shared_file.h"

namespace prefixd::ram {

uint64_t Arena::BackedBytes() const {
  return (in_service_ + backing_ + leaving_.size()) * shape_.slab_bytes + table_bytes_;
}

uint64_t Arena::StayingBytes() const { return BackedBytes() - leaving_.size() * shape_.slab_bytes; }

bool Arena::Fits(uint64_t more_bytes) const {
  return BackedBytes() + more_bytes <= capacity_bytes_;
}

uint64_t Arena::RecordBytes(uint64_t extent_bytes) const {
  return base::AlignUp(shape_.slab_bytes / extent_bytes * sizeof(block::PageRecord),
                       block::kExtentUnit);
}

bool Arena::BackSlab(uint64_t record_bytes) {
  if (file_ == nullptr) return TakePrivateSlab();
  if (idle_slabs_.empty() || !Fits(shape_.slab_bytes + record_bytes)) {
    // Another thread's slab may serve, or may leave, as those that wait for workers will.
    const bool room_comes = !idle_slabs_.empty() && LeavesRoom(shape_.slab_bytes + record_bytes);
    if (backing_ == 0 && populating_ == 0 && !room_comes) return false;
    AwaitSlab();
    return true;
  }
  const uint32_t index = *idle_slabs_.begin();
  idle_slabs_.erase(index);
  ++backing_;
  mutex_.unlock();
  const uint64_t offset = file_->DataOffset(index);
  const bool ok = file_->HasRoom(shape_.slab_bytes) && file_->BackData(offset, shape_.slab_bytes);
  mutex_.lock();
  --backing_;
  tmpfs_full_ = !ok;
  if (ok) {
    slabs_[index].in_service = true;
    ++in_service_;
    free_slabs_.insert(index);
    wants_populating_ = true;
    TellService(index);
  } else {
    idle_slabs_.insert(index);
  }
  backed_.NotifyAll();
  return ok;
}

bool Arena::LeavesRoom(uint64_t bytes) const {
  return !leaving_.empty() && !Fits(bytes) && StayingBytes() + bytes <= capacity_bytes_;
}

void Arena::AwaitSlab() {
  if (leaving_.empty()) return backed_.Wait(mutex_);
  backed_.WaitUntil(mutex_, NextLate());
  EndLeavingLocked();
}

// The kernel gives its memory as it is written.
bool Arena::TakePrivateSlab() {
  if (idle_slabs_.empty() || !Fits(shape_.slab_bytes)) return false;
  const uint32_t index = *idle_slabs_.begin();
  idle_slabs_.erase(index);
  free_slabs_.insert(index);
  slabs_[index].in_service = true;
  ++in_service_;
  return true;
}

bool Arena::BackOneMore() {
  base::MutexLock lock(mutex_);
  return BackSlab(std::max<uint64_t>(last_record_bytes_, block::kExtentUnit));
}

uint64_t Arena::PopulateStep() const {
  return base::AlignUp(shape_.slab_bytes / 8, block::kExtentUnit);
}

uint64_t Arena::PopulateEnd(const Slab& slab, uint64_t ahead_bytes) const {
  const uint64_t covered = slab.extent_bytes == 0 ? shape_.slab_bytes : slab.covered_bytes();
  return std::min(slab.filled_bytes + ahead_bytes, covered);
}

bool Arena::WantsPopulating(uint32_t index) const {
  const Slab& slab = slabs_[index];
  return !slab.populating && index < retire_from_ &&
         slab.populated_bytes < PopulateEnd(slab, PopulateStep());
}

// Picks from the slabs that are being filled, one of each extent size; then the slab that will be
// cut next.
std::optional<uint32_t> Arena::SlabToPopulate() const {
  for (const auto& [bytes, slabs] : open_slabs_) {
    if (WantsPopulating(*slabs.begin())) return *slabs.begin();
  }
  if (free_slabs_.empty() || !WantsPopulating(*free_slabs_.begin())) return std::nullopt;
  return *free_slabs_.begin();
}

bool Arena::PopulateAhead() {
  if (file_ == nullptr) return false;
  base::MutexLock lock(mutex_);
  const std::optional<uint32_t> index = SlabToPopulate();
  if (!index.has_value()) {
    wants_populating_ = false;
    return false;
  }
  Slab& slab = slabs_[*index];
  // Whoever writes the extents given out meanwhile maps them.
  const uint64_t begin = std::max(slab.populated_bytes, slab.filled_bytes);
  const uint64_t end = PopulateEnd(slab, PopulateStep());
  slab.populated_bytes = end;
  slab.populating = true;
  ++populating_;
  mutex_.unlock();
  if (begin < end) file_->Populate(file_->DataOffset(*index) + begin, end - begin);
  mutex_.lock();
  slab.populating = false;
  --populating_;
  if (!Fits(0)) Shrink();  // an earlier Shrink had to leave this slab out
  backed_.NotifyAll();
  return true;
}

bool Arena::SizeRecords(uint32_t index, uint64_t bytes) {
  Slab& slab = slabs_[index];
  if (slab.record_bytes > bytes) PunchRecords(index, bytes);
  if (slab.record_bytes == bytes) return true;
  const uint64_t had = slab.record_bytes;
  if (!MakeRoom(bytes - had, index)) return false;
  const uint64_t offset = file_->RecordsOffset(index) + had;
  while (!file_->BackTables(offset, bytes - had)) {
    tmpfs_full_ = true;
    file_->Punch(offset, bytes - had);
    if (!GiveSlabBack(index)) return false;
  }
  slab.record_bytes = bytes;
  table_bytes_ += bytes - had;
  return true;
}

// First gives back the memory of free slabs' records, then free slabs themselves. False too while
// the room is that of slabs that wait for workers.
bool Arena::MakeRoom(uint64_t bytes, uint32_t keep) {
  for (auto slab = free_slabs_.begin(); slab != free_slabs_.end() && !Fits(bytes); ++slab) {
    if (*slab != keep) PunchRecords(*slab, 0);
  }
  while (StayingBytes() + bytes > capacity_bytes_) {
    if (!GiveSlabBack(keep)) return false;
  }
  return Fits(bytes);
}

std::optional<uint32_t> Arena::SlabToGiveBack(uint32_t keep) const {
  std::optional<uint32_t> pinned;  // for want of one that nobody has to unpin
  for (auto slab = free_slabs_.rbegin(); slab != free_slabs_.rend(); ++slab) {
    if (*slab == keep || slabs_[*slab].populating) continue;
    if (!IsAwaited(*slab)) return *slab;
    if (!pinned.has_value()) pinned = *slab;
  }
  return pinned;
}

bool Arena::GiveSlabBack(uint32_t keep) {
  const std::optional<uint32_t> slab = SlabToGiveBack(keep);
  if (slab.has_value()) LeaveService(*slab);
  return slab.has_value();
}

void Arena::PunchRecords(uint32_t index, uint64_t keep_bytes) {
  Slab& slab = slabs_[index];
  if (slab.record_bytes <= keep_bytes) return;
  file_->Punch(file_->RecordsOffset(index) + keep_bytes, slab.record_bytes - keep_bytes);
  table_bytes_ -= slab.record_bytes - keep_bytes;
  slab.record_bytes = keep_bytes;
}

void Arena::TellService(uint32_t index) {
  std::atomic<uint64_t>& service = file_->slab(index)->service;
  service.store(block::NextService(service.load(std::memory_order_relaxed)),
                std::memory_order_release);
}

void Arena::LeaveService(uint32_t index) {
  free_slabs_.erase(index);
  slabs_[index].in_service = false;
  slabs_[index].populated_bytes = 0;
  --in_service_;
  if (file_ == nullptr) return TakeMemory(index);
  // First: the next daemon must not take the slab for backed, nor a worker for what it pinned.
  TellService(index);
  PunchRecords(index, 0);
  if (!IsAwaited(index)) return TakeMemory(index);
  Ask(index);
}

void Arena::Shrink() {
  while (StayingBytes() > capacity_bytes_ && GiveSlabBack(static_cast<uint32_t>(slabs_.size()))) {
  }
  uint64_t bytes = StayingBytes();
  retire_from_ = static_cast<uint32_t>(slabs_.size());
  for (uint32_t i = retire_from_; i > 0 && bytes > capacity_bytes_; --i) {
    if (!slabs_[i - 1].in_service) continue;
    bytes -= shape_.slab_bytes + slabs_[i - 1].record_bytes;
    retire_from_ = i - 1;
  }
}

uint64_t Arena::most_capacity_bytes() const {
  return shape_.slabs * shape_.slab_bytes +
         SharedFile::LeastCapacity(shape_.slab_bytes, shape_.slabs);
}

absl::Status Arena::Resize(uint64_t capacity_bytes) {
  if (file_ == nullptr) {
    return absl::FailedPreconditionError(
        "arena: private memory keeps its size, only a shared arena can be resized");
  }
  const uint64_t least = SharedFile::LeastCapacity(shape_.slab_bytes, shape_.slabs);
  const uint64_t most = most_capacity_bytes();
  if (capacity_bytes < least || capacity_bytes > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("arena: pages would have ", base::FormatBytes(capacity_bytes),
                     " of that budget. The arena's file has room for ", base::FormatBytes(least),
                     " to ", base::FormatBytes(most),
                     " since the start: for others, start prefixd again with that --ram"));
  }
  base::MutexLock lock(mutex_);
  capacity_bytes_ = capacity_bytes;
  Shrink();
  return absl::OkStatus();
}

bool Arena::GiveUp(uint64_t bytes) {
  base::MutexLock lock(mutex_);
  const uint64_t least = file_ == nullptr
                             ? shape_.slab_bytes
                             : SharedFile::LeastCapacity(shape_.slab_bytes, shape_.slabs);
  const uint64_t free_bytes = free_slabs_.size() * shape_.slab_bytes;
  if (capacity_bytes_ < least + bytes || StayingBytes() - free_bytes + bytes > capacity_bytes_) {
    return false;
  }
  capacity_bytes_ -= bytes;  // first: while this waits for workers, nobody takes what leaves for it
  while (!MakeRoom(0, static_cast<uint32_t>(slabs_.size()))) {
    if (leaving_.empty() || StayingBytes() > capacity_bytes_) {
      capacity_bytes_ += bytes;
      Shrink();
      return false;
    }
    AwaitSlab();
  }
  return true;
}

void Arena::TakeBack(uint64_t bytes) {
  base::MutexLock lock(mutex_);
  capacity_bytes_ += bytes;
  Shrink();  // slabs that were to run empty may stay
}

uint64_t Arena::OverBytes() const {
  base::MutexLock lock(mutex_);
  return BackedBytes() - std::min(BackedBytes(), capacity_bytes_);
}

std::optional<uint64_t> Arena::LimitedTo() const {
  const std::optional<uint64_t> room = file_ == nullptr ? std::nullopt : file_->RoomBytes();
  base::MutexLock lock(mutex_);
  return room < capacity_bytes_ ? room : std::nullopt;
}

std::optional<SlabRange> Arena::SlabToRetire() const {
  base::MutexLock lock(mutex_);
  const auto count = static_cast<uint32_t>(slabs_.size());
  for (uint32_t step = retire_from_; step < count; ++step) {
    if (retire_next_ < retire_from_ || retire_next_ >= count) retire_next_ = retire_from_;
    const uint32_t index = retire_next_++;
    if (slabs_[index].in_service) return RangeOf(index);
  }
  return std::nullopt;
}

}  // namespace prefixd::ram
