// Floats: one block of floats on a cache-line boundary, for weights and activations.
//
// A value that owns its memory; movable. The alignment makes a matrix product take the same path
// through its kernels in every run: the order of additions, and with it every bit, must not depend
// on malloc.
#pragma once
#include <algorithm>
#include <cstddef>
#include <new>
#include <span>
#include <utility>

namespace prefixd::worker {

class Floats {
 public:
  Floats() = default;
  // Leaves the contents undefined: gigabytes of weights are written once, not twice.
  explicit Floats(size_t count)
      : data_(new (std::align_val_t{kAlignment}) float[count]), count_(count) {}
  ~Floats() { operator delete[](data_, std::align_val_t{kAlignment}); }
  Floats(Floats&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  Floats& operator=(Floats&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }

  float* data() { return data_; }
  const float* data() const { return data_; }
  size_t size() const { return count_; }
  std::span<float> span() { return {data_, count_}; }
  std::span<const float> span() const { return {data_, count_}; }
  void Fill(float value) { std::fill_n(data_, count_, value); }

 private:
  static constexpr size_t kAlignment = 128;
  float* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace prefixd::worker
