// The project's clocks: monotonic microseconds for waiting and measuring, unix microseconds for
// what outlives the process. Tests pass a FakeClock.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace prefixd::base {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t MonotonicMicros() const = 0;
  virtual int64_t UnixMicros() const = 0;
};

class SystemClock final : public Clock {
 public:
  int64_t MonotonicMicros() const override {
    return Micros(std::chrono::steady_clock::now().time_since_epoch());
  }
  int64_t UnixMicros() const override {
    return Micros(std::chrono::system_clock::now().time_since_epoch());
  }
  static const SystemClock& Get() {
    static const SystemClock clock;
    return clock;
  }

 private:
  template <typename D>
  static int64_t Micros(D duration) {
    return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
  }
};

// Stands still until Advance().
class FakeClock final : public Clock {
 public:
  int64_t MonotonicMicros() const override { return now_us_.load(); }
  int64_t UnixMicros() const override { return now_us_.load(); }
  void Advance(int64_t us) { now_us_ += us; }

 private:
  std::atomic<int64_t> now_us_{1'000'000};
};

}  // namespace prefixd::base
