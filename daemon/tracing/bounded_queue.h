// A queue of fixed size between many threads that put in and threads that take out, after D.
// Vyukov's bounded queue: each cell has a number that says whose turn it is.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace prefixd::daemon {

// Thread-safe. No call waits for another one: there is no lock.
template <typename T>
class BoundedQueue {
 public:
  // Requires: `cells` is a power of two, at least 2.
  explicit BoundedQueue(size_t cells) : mask_(cells - 1), cells_(new Cell[cells]) {
    for (size_t i = 0; i < cells; ++i) cells_[i].turn.store(i, std::memory_order_relaxed);
  }

  // Returns false, and leaves `value` as it is, if the queue is full.
  bool TryPush(T&& value) {
    uint64_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & mask_];
      const uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == at) {
        if (!tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
        cell.value = std::move(value);
        cell.turn.store(at + 1, std::memory_order_release);
        return true;
      }
      if (turn < at) return false;
      at = tail_.load(std::memory_order_relaxed);
    }
  }
  // Returns false if the queue is empty, or its first value is still being put in.
  bool TryPop(T* value) {
    uint64_t at = head_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & mask_];
      const uint64_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == at + 1) {
        if (!head_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
        *value = std::exchange(cell.value, T());
        cell.turn.store(at + mask_ + 1, std::memory_order_release);
        return true;
      }
      if (turn < at + 1) return false;
      at = head_.load(std::memory_order_relaxed);
    }
  }
  // Values that are in it, more or less.
  size_t size() const {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    return tail > head ? static_cast<size_t>(tail - head) : 0;
  }

 private:
  struct Cell {
    std::atomic<uint64_t> turn{0};
    T value{};
  };

  const uint64_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) std::atomic<uint64_t> head_{0};
};

}  // namespace prefixd::daemon
