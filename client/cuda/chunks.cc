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
  if (chunk->uploaded != nullptr) cudaEventDestroy(chunk->uploaded);
  if (chunk->host != nullptr) cudaFreeHost(chunk->host);
  if (chunk->device != nullptr) cudaFree(chunk->device);
}

Chunks::~Chunks() {
  for (auto& chunk : chunks_) Free(chunk.get());
  if (upload_stream_ != nullptr) cudaStreamDestroy(upload_stream_);
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
    PREFIXD_RETURN_IF_ERROR(FromCuda(
        cudaEventCreateWithFlags(&chunk->uploaded, cudaEventDisableTiming), "cuda: event"));
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

absl::StatusOr<cudaStream_t> Chunks::UploadStream() {
  const std::lock_guard lock(mutex_);
  if (upload_stream_ == nullptr) {
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(cudaStreamCreateWithFlags(&upload_stream_, cudaStreamNonBlocking),
                 "cuda: a stream for tables"));
  }
  return upload_stream_;
}

absl::StatusOr<Chunk*> Chunks::Upload(const void* from, size_t bytes, cudaStream_t stream) {
  PREFIXD_ASSIGN_OR_RETURN(cudaStream_t own, UploadStream());
  PREFIXD_ASSIGN_OR_RETURN(Chunk * chunk, Take(bytes));
  std::memcpy(chunk->host, from, bytes);
  const auto queue = [&]() -> absl::Status {
    PREFIXD_RETURN_IF_ERROR(
        FromCuda(cudaMemcpyAsync(chunk->device, chunk->host, bytes, cudaMemcpyHostToDevice, own),
                 "cuda: copy of a table"));
    PREFIXD_RETURN_IF_ERROR(FromCuda(cudaEventRecord(chunk->uploaded, own), "cuda: event"));
    return FromCuda(cudaStreamWaitEvent(stream, chunk->uploaded, 0), "cuda: wait for a table");
  };
  const absl::Status status = queue();
  if (!status.ok()) {
    Give(chunk, own).IgnoreError();  // the error before says more
    return status;
  }
  return chunk;
}

}  // namespace prefixd::cuda
