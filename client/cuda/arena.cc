#include "arena.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "errors.h"

namespace prefixd::cuda {

absl::StatusOr<std::unique_ptr<Arena>> Arena::Pin(const Options& options) {
  if (options.base == nullptr) return absl::InvalidArgumentError("pin: no mapping given");
  if (reinterpret_cast<uintptr_t>(options.base) % Slices::kPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pin: the mapping does not begin at a multiple of ", Slices::kPageBytes));
  }
  PREFIXD_ASSIGN_OR_RETURN(Slices slices, Slices::Plan({.bytes = options.bytes,
                                                        .slab_bytes = options.slab_bytes,
                                                        .slice_bytes = options.slice_bytes}));
  auto arena = std::make_unique<Arena>(std::move(slices), options);
  if (options.background) {
    arena->thread_ = std::thread([it = arena.get()] { it->PinAll(); });
  } else {
    arena->PinAll();
  }
  return arena;
}

Arena::Arena(Slices slices, const Options& options)
    : options_(options), slices_(std::move(slices)) {}

Arena::~Arena() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
  cudaSetDevice(options_.device);
  for (size_t i = 0; i < slices_.count(); ++i) {
    const Slice slice = slices_.At(i);
    if (!slice.pinned) continue;
    slices_.SetPinned(i, false);
    // The driver only reads what is registered read-only; its signature asks for void*.
    cudaHostUnregister(const_cast<std::byte*>(options_.base + slice.offset));
  }
  cudaGetLastError();
}

bool Arena::Pause() {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, std::chrono::microseconds(options_.pause_us),
                            [this] { return stop_; });
}

void Arena::PinAll() {
  cudaSetDevice(options_.device);
  for (size_t i = 0; i < slices_.count(); ++i) {
    const Slice slice = slices_.At(i);
    const cudaError_t error =
        cudaHostRegister(const_cast<std::byte*>(options_.base + slice.offset), slice.bytes,
                         cudaHostRegisterReadOnly | cudaHostRegisterMapped);
    if (error == cudaSuccess) {
      slices_.SetPinned(i, true);
    } else {
      cudaGetLastError();
    }
    {
      const std::lock_guard lock(mutex_);
      if (error == cudaSuccess) {
        progress_.pinned_bytes += slice.bytes;
        ++progress_.pinned_slices;
      } else {
        if (progress_.refused_slices++ == 0) progress_.why_refused = cudaGetErrorString(error);
      }
    }
    if (i + 1 < slices_.count() && !Pause()) return;
  }
  const std::lock_guard lock(mutex_);
  progress_.finished = true;
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
