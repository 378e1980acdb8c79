// Context: one GPU, what is pinned for it, and the memory by which copies travel.
//
// Thread-safe.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"

#include "arena.h"
#include "attend_arguments.h"
#include "chunks.h"
#include "device_pages.h"
#include "prefixd/cuda.h"

namespace prefixd::cuda {

// Device pages and the memory that they are in.
struct PageTier {
  explicit PageTier(uint64_t bytes) : pages(bytes) {}
  DevicePages pages;
  std::byte* memory = nullptr;
};

class Context {
 public:
  static absl::StatusOr<std::unique_ptr<Context>> Open(const prefixd_cuda_options& options);
  explicit Context(const prefixd_cuda_options& options);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context();

  // Makes the GPU the calling thread's.
  absl::Status Enter() const;

  int device() const { return device_; }
  const prefixd_cuda_facts& facts() const { return facts_; }
  const SharedMemory& shared_memory() const { return shared_memory_; }
  uint32_t copy_threads() const { return copy_threads_; }
  Chunks& tables() { return tables_; }
  Chunks& bounce() { return bounce_; }
  size_t bounce_chunk_bytes() const { return bounce_chunk_bytes_; }
  // For loads that bring no stream of their own; does not wait for the legacy default stream.
  cudaStream_t load_stream() const { return load_stream_; }
  // A stream for the expansions of one load, which run beside its copies. Give it back when nothing
  // is queued on it.
  absl::StatusOr<cudaStream_t> TakeExpandStream();
  void GiveExpandStream(cudaStream_t stream);
  // For memory that lives as long as a load; keeps what is freed.
  cudaMemPool_t scratch() const { return scratch_; }

  // Reserves memory for device pages, once.
  absl::Status KeepPages(uint64_t budget_bytes);
  // Null if there are none.
  PageTier* page_tier() const;

  void Add(const Arena* arena);
  void Remove(const Arena* arena);
  // Where the GPU may read [address, address + bytes).
  enum class Reach { kUnknown, kPinned, kNotPinned, kDevice };
  // Looks into this context's arenas alone: kUnknown, kPinned or kNotPinned. Fast.
  Reach InArenas(const void* address, uint64_t bytes) const;
  // Device memory that was found, so that its neighbours are not asked for again.
  struct DeviceRange {
    uintptr_t begin = 0, end = 0;
  };
  // Asks CUDA about what is in no arena: kPinned, kNotPinned or kDevice.
  Reach ReachOf(const void* address, uint64_t bytes, DeviceRange* known) const;
  // [from, from + bytes) cut where a copy must be: at the borders of slices.
  struct Span {
    const void* from = nullptr;
    uint64_t bytes = 0;
    bool pinned = false;
  };
  std::vector<Span> SpansOf(const void* from, uint64_t bytes) const;

 private:
  absl::Status Prepare();

  const int device_;
  const uint32_t copy_threads_;
  const size_t bounce_chunk_bytes_;
  prefixd_cuda_facts facts_ = {};
  SharedMemory shared_memory_;
  cudaStream_t load_stream_ = nullptr;
  cudaMemPool_t scratch_ = nullptr;
  Chunks tables_;
  Chunks bounce_;
  mutable std::mutex mutex_;                  // guards what follows; page_tier_ until it is set
  std::vector<cudaStream_t> expand_streams_;  // that no load has
  std::vector<const Arena*> arenas_;
  std::unique_ptr<PageTier> page_tier_;
};

}  // namespace prefixd::cuda

// The handles of cuda.h.
struct prefixd_cuda {
  std::unique_ptr<prefixd::cuda::Context> context;
};
struct prefixd_cuda_arena {
  prefixd::cuda::Context* context = nullptr;
  std::unique_ptr<prefixd::cuda::Arena> arena;
};
