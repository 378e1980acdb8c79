#include "chunks.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "errors.h"

namespace prefixd::cuda {

void Chunks::Free(Chunk* chunk) {
  if (chunk->done != nullptr) {
    cudaEventSynchronize(chunk->done);
    cudaEventDestroy(chunk->done);
  }
  if (chunk->host != nullptr) cudaFreeHost(chunk->host);
  if (chunk->device != nullptr) cudaFree(chunk->device);
}

Chunks::~Chunks() {
  for (auto& chunk : chunks_) Free(chunk.get());
}

absl::StatusOr<Chunk*> Chunks::Allocate(size_t bytes) {
  auto chunk = std::make_unique<Chunk>();
  chunk->bytes = std::max(bytes, options_.least_bytes);
  const auto allocate = [&]() -> absl::Status {
    void* memory = nullptr;
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(cudaHostAlloc(&memory, chunk->bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                 "cuda: pinned memory for copies"));
    chunk->host = static_cast<std::byte*>(memory);
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(cudaEventCreateWithFlags(&chunk->done, cudaEventDisableTiming), "cuda: event"));
    if (!options_.with_device) return absl::OkStatus();
    memory = nullptr;
    PREFIXD_RETURN_IF_ERROR(FromCuda(cudaMalloc(&memory, chunk->bytes), "cuda: device memory"));
    chunk->device = static_cast<std::byte*>(memory);
    return absl::OkStatus();
  };
  const absl::Status status = allocate();
  if (!status.ok()) {
    Free(chunk.get());
    return status;
  }
  chunk->taken = true;
  bytes_ += chunk->bytes;
  return chunks_.emplace_back(std::move(chunk)).get();
}

absl::StatusOr<Chunk*> Chunks::Take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  Chunk* on_its_way = nullptr;
  for (auto& chunk : chunks_) {
    if (chunk->taken || chunk->bytes < bytes) continue;
    if (cudaEventQuery(chunk->done) == cudaSuccess) {
      chunk->taken = true;
      return chunk.get();
    }
    if (on_its_way == nullptr) on_its_way = chunk.get();
  }
  cudaGetLastError();  // cudaErrorNotReady is an answer
  if (on_its_way == nullptr ||
      bytes_ + std::max(bytes, options_.least_bytes) <= options_.most_bytes) {
    return Allocate(bytes);
  }
  on_its_way->taken = true;
  PREFIXD_RETURN_IF_ERROR(FromCuda(cudaEventSynchronize(on_its_way->done), "cuda: copies before"));
  return on_its_way;
}

absl::Status Chunks::Give(Chunk* chunk, cudaStream_t stream) {
  const absl::Status status = FromCuda(cudaEventRecord(chunk->done, stream), "cuda: event");
  GiveUnused(chunk);
  return status;
}

void Chunks::GiveUnused(Chunk* chunk) {
  const std::lock_guard lock(mutex_);
  chunk->taken = false;
}

absl::StatusOr<Chunk*> Upload(Chunks& chunks, const void* from, size_t bytes, cudaStream_t stream) {
  PREFIXD_ASSIGN_OR_RETURN(Chunk * chunk, chunks.Take(bytes));
  std::memcpy(chunk->host, from, bytes);
  const absl::Status status =
      FromCuda(cudaMemcpyAsync(chunk->device, chunk->host, bytes, cudaMemcpyHostToDevice, stream),
               "cuda: copy of a table");
  if (!status.ok()) {
    chunks.GiveUnused(chunk);
    return status;
  }
  return chunk;
}

}  // namespace prefixd::cuda
