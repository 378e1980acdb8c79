// Chunks: pinned host memory for what is on its way to the GPU, used again once the GPU is done.
//
// Thread-safe. The device is set by the caller.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"

namespace prefixd::cuda {

struct Chunk {
  std::byte* host = nullptr;    // pinned; the GPU reads it at the same address
  std::byte* device = nullptr;  // as large, or null
  size_t bytes = 0;
  cudaEvent_t done = nullptr;      // recorded by Give()
  cudaEvent_t uploaded = nullptr;  // recorded by Upload(); null where there is no device memory
  bool taken = false;
};

class Chunks {
 public:
  struct Options {
    size_t least_bytes = 0;    // of a chunk
    size_t most_bytes = 0;     // of all chunks together; Take() waits for the GPU beyond it
    bool with_device = false;  // chunks have device memory too
  };
  explicit Chunks(const Options& options) : options_(options) {}
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;
  // Waits for the GPU.
  ~Chunks();

  // Returns a chunk of at least `bytes` that nothing on the GPU reads. A chunk that is larger than
  // most_bytes is given all the same. ResourceExhausted when memory is out.
  absl::StatusOr<Chunk*> Take(size_t bytes);
  // The chunk is free once what is queued on `stream` now is done.
  absl::Status Give(Chunk* chunk, cudaStream_t stream);
  // The chunk is free now.
  void GiveUnused(Chunk* chunk);

  // Copies a whole array to the GPU for what is queued on `stream` next. It travels on a stream of
  // its own, while what was queued before is still at work. The chunk must be given back after the
  // last kernel that reads it was queued. Not for a stream that is being captured. Only where
  // chunks have device memory.
  absl::StatusOr<Chunk*> Upload(const void* from, size_t bytes, cudaStream_t stream);

 private:
  absl::StatusOr<cudaStream_t> UploadStream();
  absl::StatusOr<Chunk*> Allocate(size_t bytes);
  static void Free(Chunk* chunk);

  const Options options_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Chunk>> chunks_;
  size_t bytes_ = 0;
  cudaStream_t upload_stream_ = nullptr;
};

}  // namespace prefixd::cuda
