// A pointer that is null until one thread sets it, once, while others look.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace prefixd::cache {

// Thread-safe. What it points to lives as long as it.
template <typename T>
class LatePtr {
 public:
  void Set(std::unique_ptr<T> value) {
    owned_ = std::move(value);
    seen_.store(owned_.get(), std::memory_order_release);
  }
  T* get() const { return seen_.load(std::memory_order_acquire); }
  T* operator->() const { return get(); }
  friend bool operator==(const LatePtr& pointer, std::nullptr_t) {
    return pointer.get() == nullptr;
  }

 private:
  std::unique_ptr<T> owned_;
  std::atomic<T*> seen_{nullptr};
};

}  // namespace prefixd::cache
