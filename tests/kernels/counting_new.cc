#include "tests/kernels/counting_new.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<size_t> g_now{0};
std::atomic<size_t> g_peak{0};

// In front of every allocation: what was asked for. Malloc's own slack varies from call to call.
struct Header {
  void* base = nullptr;
  size_t bytes = 0;
};

Header* HeaderOf(void* memory) { return static_cast<Header*>(memory) - 1; }

void* CountedAllocate(size_t bytes, size_t alignment) {
  alignment = std::max(alignment, sizeof(Header));
  const size_t whole = (bytes + alignment - 1) / alignment * alignment;  // as aligned_alloc wants
  void* const base = std::aligned_alloc(alignment, whole + alignment);
  if (base == nullptr) return nullptr;
  void* const memory = static_cast<char*>(base) + alignment;
  *HeaderOf(memory) = {base, bytes};
  const size_t now = g_now.fetch_add(bytes) + bytes;
  size_t peak = g_peak.load();
  while (now > peak && !g_peak.compare_exchange_weak(peak, now)) {
  }
  return memory;
}

void* CountedOrThrow(size_t bytes, size_t alignment) {
  void* memory = CountedAllocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void CountedFree(void* memory) {
  if (memory == nullptr) return;
  g_now.fetch_sub(HeaderOf(memory)->bytes);
  std::free(HeaderOf(memory)->base);
}

constexpr size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(size_t bytes) { return CountedOrThrow(bytes, kDefault); }
void* operator new[](size_t bytes) { return CountedOrThrow(bytes, kDefault); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountedOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return CountedOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return CountedAllocate(bytes, kDefault);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return CountedAllocate(bytes, kDefault);
}
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return CountedAllocate(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return CountedAllocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { CountedFree(memory); }
void operator delete[](void* memory) noexcept { CountedFree(memory); }
void operator delete(void* memory, size_t) noexcept { CountedFree(memory); }
void operator delete[](void* memory, size_t) noexcept { CountedFree(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { CountedFree(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { CountedFree(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { CountedFree(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { CountedFree(memory); }

namespace prefixd::kernels {

AllocationWatch::AllocationWatch() : before_(g_now.load()) { g_peak.store(before_); }

size_t AllocationWatch::peak_bytes() const { return g_peak.load() - before_; }

}  // namespace prefixd::kernels
