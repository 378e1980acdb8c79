#include "arena.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "registrations.h"

namespace prefixd::cuda {
namespace {

constexpr std::chrono::milliseconds kLookEvery(100);

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> Arena::Pin(const Options& options) {
  if (options.base == nullptr) return absl::InvalidArgumentError("pin: no mapping given");
  if (reinterpret_cast<uintptr_t>(options.base) % Slices::kPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pin: the mapping does not begin at a multiple of ", Slices::kPageBytes));
  }
  PREFIXD_ASSIGN_OR_RETURN(Slices slices, Slices::Plan({.bytes = options.bytes,
                                                        .slab_bytes = options.slab_bytes,
                                                        .slice_bytes = options.slice_bytes,
                                                        .service = options.service,
                                                        .service_stride = options.service_stride}));
  auto arena = std::make_unique<Arena>(std::move(slices), options);
  if (!options.background) arena->Step();
  if (options.background || options.service != nullptr) {
    arena->thread_ = std::thread([it = arena.get()] { it->Follow(); });
  }
  return arena;
}

Arena::Arena(Slices slices, const Options& options)
    : options_(options), slices_(std::move(slices)), refused_(slices_.count()) {
  if (options.service == nullptr) progress_.bytes = options.bytes;
}

Arena::~Arena() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
  cudaSetDevice(options_.device);
  for (size_t i = 0; i < slices_.count(); ++i) {
    const size_t first = i;
    for (; i < slices_.count() && slices_.RegisteredOf(i) != 0; ++i) Unpin(i);
    if (i > first) Tell(first, i - first, false);
  }
}

void Arena::Tell(size_t first, size_t slices, bool pinned) {
  if (options_.tell == nullptr || options_.service == nullptr) return;
  told_ = options_.tell(options_.teller, first, slices, pinned ? 1 : 0) != 0;
}

bool Arena::Pause(std::chrono::microseconds time) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, time, [this] { return stop_; });
}

void Arena::Follow() {
  cudaSetDevice(options_.device);
  while (Step() && options_.service != nullptr && Pause(kLookEvery)) {
  }
}

// No page of a slab that loses its memory is leased, so nothing on the GPU reads what is unpinned
// here. Memory that a slab loses while it is being registered is not what readers take for pinned.
bool Arena::Step() {
  cudaSetDevice(options_.device);
  if (!told_) Tell(0, 0, false);
  UnpinLost();
  uint64_t bytes = 0;
  for (size_t i = 0; i < slices_.count(); ++i) {
    const uint64_t memory = slices_.MemoryOf(i);
    if (!Slices::HasMemory(memory)) continue;
    bytes += slices_.At(i).bytes;
    if (slices_.RegisteredOf(i) != 0 || refused_[i] == memory || !Pin(i, memory)) continue;
    if (!Pause(std::chrono::microseconds(options_.pause_us))) return false;
    UnpinLost();  // the daemon waits for it, and pinning all may take minutes
  }
  const std::lock_guard lock(mutex_);
  progress_.bytes = bytes;
  progress_.finished = true;
  return true;
}

void Arena::UnpinLost() {
  for (size_t i = 0; i < slices_.count(); ++i) {
    const uint64_t registered = slices_.RegisteredOf(i);
    if (registered == 0 || registered == slices_.MemoryOf(i)) continue;
    Unpin(i);
    Tell(i, 1, false);
  }
}

bool Arena::Pin(size_t i, uint64_t memory) {
  Tell(i, 1, true);
  if (slices_.MemoryOf(i) != memory) {  // lost before the daemon knew
    Tell(i, 1, false);
    return false;
  }
  const Slice slice = slices_.At(i);
  const cudaError_t error =
      Registrations::OfProcess().Add(options_.base + slice.offset, slice.bytes, memory);
  if (error != cudaSuccess) Tell(i, 1, false);
  if (error == cudaErrorNotReady) return false;  // until another GPU's arena has unpinned it
  const std::lock_guard lock(mutex_);
  if (error == cudaSuccess) {
    slices_.SetRegistered(i, memory);
    progress_.pinned_bytes += slice.bytes;
    ++progress_.pinned_slices;
    return true;
  }
  refused_[i] = memory;
  if (progress_.refused_slices++ == 0) progress_.why_refused = cudaGetErrorString(error);
  return true;
}

void Arena::Unpin(size_t i) {
  const Slice slice = slices_.At(i);
  slices_.SetRegistered(i, 0);
  Registrations::OfProcess().Remove(options_.base + slice.offset);
  const std::lock_guard lock(mutex_);
  progress_.pinned_bytes -= slice.bytes;
  --progress_.pinned_slices;
}

Arena::Progress Arena::progress() const {
  const std::lock_guard lock(mutex_);
  return progress_;
}

bool Arena::Contains(const void* address, uint64_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto base = reinterpret_cast<uintptr_t>(options_.base);
  return at >= base && bytes <= options_.bytes && at - base <= options_.bytes - bytes;
}

bool Arena::IsPinned(const void* address, uint64_t bytes) const {
  if (!Contains(address, bytes)) return false;
  return slices_.ArePinned(
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(options_.base), bytes);
}

}  // namespace prefixd::cuda
