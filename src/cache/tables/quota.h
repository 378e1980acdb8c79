// How much of a shared budget one session may take: so many times what is left to others, at most.
// With weight 1 a session alone gets a half, two a third each; with weight 7 seven eighths, two
// seven fifteenths each. Whoever comes next finds room.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace prefixd::cache {

// Bytes of one budget that a session has taken, and that all have. Thread-safe.
struct QuotaGauges {
  std::atomic<uint64_t>* own;
  std::atomic<uint64_t>* all;
};

// Some bytes of it, given back with this.
class Charge {
 public:
  // nullptr when the session would have more than `weight` times what is left of `budget`. `owner`
  // keeps the session's gauge alive.
  static std::shared_ptr<const Charge> Take(uint64_t bytes, uint64_t budget, uint64_t weight,
                                            QuotaGauges gauges, std::shared_ptr<const void> owner) {
    const auto fits = [budget, weight](uint64_t own, uint64_t all) {
      return all <= budget && own <= weight * (budget - all);
    };
    // Looked at first: a refused request must not be in the way of others for a moment.
    if (!fits(gauges.own->load() + bytes, gauges.all->load() + bytes)) return nullptr;
    const uint64_t own = gauges.own->fetch_add(bytes) + bytes;
    const uint64_t all = gauges.all->fetch_add(bytes) + bytes;
    std::shared_ptr<const Charge> charge(new Charge(bytes, gauges, std::move(owner)));
    return fits(own, all) ? charge : nullptr;
  }
  ~Charge() {
    *gauges_.own -= bytes_;
    *gauges_.all -= bytes_;
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  uint64_t bytes() const { return bytes_; }

 private:
  Charge(uint64_t bytes, QuotaGauges gauges, std::shared_ptr<const void> owner)
      : bytes_(bytes), gauges_(gauges), owner_(std::move(owner)) {}

  const uint64_t bytes_;
  const QuotaGauges gauges_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace prefixd::cache
