// Slabs that workers have pinned for devices. The kernel keeps pinned memory whatever is punched,
// so a slab that leaves service gives its memory back once its workers have unpinned it. It counts
// as in use until then. A worker that was late is not waited for before it says that it has
// unpinned all that was taken.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/container/inlined_vector.h"

#include "os/memory.h"
#include "ram/arena.h"
#include "ram/shared_file.h"

namespace prefixd::ram {
namespace {

// The numbers of the bits that are set.
absl::InlinedVector<size_t, 64> SlotsOf(uint64_t bits) {
  absl::InlinedVector<size_t, 64> slots;
  for (; bits != 0; bits &= bits - 1) slots.push_back(static_cast<size_t>(std::countr_zero(bits)));
  return slots;
}

}  // namespace

void Arena::SetDevicePins(uint32_t slot, std::span<const std::byte> slabs) {
  const uint64_t bit = uint64_t{1} << slot;
  base::MutexLock lock(mutex_);
  bool keeps = false;  // what was taken although it had it pinned
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    const auto bits = i / 8 < slabs.size() ? std::to_integer<uint32_t>(slabs[i / 8]) : 0;
    const bool pinned = (bits >> i % 8 & 1) != 0;
    slabs_[i].pinned_by = pinned ? slabs_[i].pinned_by | bit : slabs_[i].pinned_by & ~bit;
    keeps = keeps || (pinned && !slabs_[i].in_service && !leaving_.contains(i));
  }
  if (!keeps) late_slots_ &= ~bit;
  EndLeavingLocked();
}

void Arena::ForgetDevicePins(uint32_t slot) {
  SetDevicePins(slot, {});
  base::MutexLock lock(mutex_);
  patience_[slot] = {};
}

bool Arena::IsAwaited(uint32_t index) const {
  return (slabs_[index].pinned_by & ~late_slots_) != 0;
}

void Arena::Ask(uint32_t index) {
  const uint64_t slots = slabs_[index].pinned_by & ~late_slots_;
  std::chrono::nanoseconds most{0};
  for (const size_t slot : SlotsOf(slots)) {
    most = std::max(most, patience_[slot].Of(unpin_within_));
  }
  leaving_[index] = {.until = std::chrono::steady_clock::now() + most, .asked_slots = slots};
}

base::Deadline Arena::NextLate() const {
  const auto until = [](const auto& it) { return it.second.until; };
  return until(*std::ranges::min_element(leaving_, {}, until));
}

void Arena::TakeMemory(uint32_t index) {
  if (file_ == nullptr) {
    os::DropPrivatePages(base_ + index * shape_.slab_bytes, shape_.slab_bytes);
  } else {
    file_->Punch(file_->DataOffset(index), shape_.slab_bytes);
  }
  idle_slabs_.insert(index);
}

void Arena::EndLeavingLocked() {
  const auto now = std::chrono::steady_clock::now();
  for (const auto& [index, leaver] : leaving_) {
    if (!IsAwaited(index) || now < leaver.until) continue;
    const uint64_t late = slabs_[index].pinned_by & ~late_slots_;
    for (const size_t slot : SlotsOf(late)) patience_[slot].Late();
    new_late_slots_ |= late;
    late_slots_ |= late;
  }
  const size_t waited = leaving_.size();
  for (auto slab = leaving_.begin(); slab != leaving_.end();) {
    const uint32_t index = slab->first;
    if (IsAwaited(index)) {
      ++slab;
    } else {
      for (const size_t slot : SlotsOf(slab->second.asked_slots & ~late_slots_)) {
        patience_[slot].InTime();
      }
      TakeMemory(index);
      slab = leaving_.erase(slab);
    }
  }
  if (leaving_.size() < waited) backed_.NotifyAll();
}

Arena::Leaving Arena::EndLeaving() {
  base::MutexLock lock(mutex_);
  if (!leaving_.empty()) EndLeavingLocked();
  Leaving left{.waits = !leaving_.empty(), .late_slots = std::exchange(new_late_slots_, 0)};
  if (left.waits) left.until = NextLate();
  return left;
}

DevicePins Arena::device_pins() const {
  DevicePins pins;
  base::MutexLock lock(mutex_);
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].pinned_by == 0) continue;
    pins.bytes += shape_.slab_bytes;
    if (leaving_.contains(i)) {
      pins.awaited_bytes += shape_.slab_bytes;
    } else if (!slabs_[i].in_service) {
      pins.kept_bytes += shape_.slab_bytes;
    }
    for (const size_t slot : SlotsOf(slabs_[i].pinned_by)) {
      pins.slot_bytes[slot] += shape_.slab_bytes;
    }
  }
  return pins;
}

}  // namespace prefixd::ram
