// Arena: a mapping of the daemon's memory that the GPU reads where it lies, pinned slice by slice.
// Where the daemon tells which slabs have memory, a thread follows it.
//
// Thread-safe. While a slice is being pinned, other CUDA calls of the process wait for it, so
// slices are small and a pause follows each. Reading a slice's state never waits.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"

#include "slices.h"

namespace prefixd::cuda {

class Arena {
 public:
  struct Options {
    int device = 0;
    const std::byte* base = nullptr;
    uint64_t bytes = 0;
    uint64_t slab_bytes = 0, slice_bytes = 0;
    const std::atomic<uint64_t>* service = nullptr;  // as Slices::Options has it
    size_t service_stride = 0;
    int (*tell)(void* teller, uint64_t slab, uint64_t slabs, int pinned) = nullptr;  // or null
    void* teller = nullptr;
    uint32_t pause_us = 0;
    bool background = false;
  };
  struct Progress {
    uint64_t bytes = 0;  // to pin
    uint64_t pinned_bytes = 0;
    uint32_t pinned_slices = 0, refused_slices = 0;
    bool finished = false;
    std::string why_refused;
  };

  // Pins all slices that have memory, or starts a thread that does.
  static absl::StatusOr<std::unique_ptr<Arena>> Pin(const Options& options);
  Arena(Slices slices, const Options& options);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Stops pinning and unpins. Requires: nothing on the GPU reads the arena.
  ~Arena();

  Progress progress() const;
  const Slices& slices() const { return slices_; }
  const std::byte* base() const { return options_.base; }
  uint64_t bytes() const { return options_.bytes; }

  // Whether [address, address + bytes) touches the mapping, lies inside it, or is pinned whole.
  bool Contains(const void* address, uint64_t bytes) const;
  bool IsPinned(const void* address, uint64_t bytes) const;

 private:
  // Pins slices that have memory, and unpins those that lost it. Returns false when it was told to
  // stop.
  bool Step();
  void Follow();
  // Returns whether it kept other CUDA calls waiting.
  bool Pin(size_t i, uint64_t memory);
  void UnpinLost();
  void Unpin(size_t i);
  // Tells the daemon, where Options say how, what is about to be pinned or was unpinned.
  void Tell(size_t first, size_t slices, bool pinned);
  // Returns false when it was told to stop.
  bool Pause(std::chrono::microseconds time);

  const Options options_;
  Slices slices_;
  std::vector<uint64_t> refused_;  // memory of each slice that the driver refused; Step() alone
  bool told_ = true;               // the daemon knows what is pinned; Step() alone
  mutable std::mutex mutex_;       // guards progress_ and stop_
  std::condition_variable stopped_;
  Progress progress_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace prefixd::cuda
