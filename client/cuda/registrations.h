// Registrations: which memory this process has registered with the driver, which registers nothing
// twice: the GPUs of a process share it.
//
// Thread-safe. A call may wait for another's, some 10 ms for a slice of 60 MiB.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace prefixd::cuda {

class Registrations {
 public:
  static Registrations& OfProcess();

  // Registers [at, at + bytes), read-only, for all GPUs, or counts one more user of it. `memory`
  // tells what was there from what is there after a hole was punched (Slices::MemoryOf).
  // cudaErrorNotReady while others have earlier memory registered there; else the driver's error.
  cudaError_t Add(const std::byte* at, uint64_t bytes, uint64_t memory);
  // Counts one user less; the last one unregisters. Requires: Add() succeeded.
  void Remove(const std::byte* at);

 private:
  struct Registered {
    uint64_t bytes = 0, memory = 0;
    uint32_t users = 0;
  };
  std::mutex mutex_;
  std::map<const std::byte*, Registered> registered_;  // by their begin
};

}  // namespace prefixd::cuda
