// When numbers that are counted up were drawn: a memory of few samples in place of a time for each.
//
// Internal to index/. Not thread-safe: the index's mutex guards it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace prefixd::index {

// A time is right to within 50 ms, or an eighth of how long ago it is. Takes at most 8 KiB.
class Timeline {
 public:
  // `number` is drawn at `now_us`. Every draw must be noted, or follow a noted one within 50 ms.
  // Numbers count up, modulo 2^64; times do not fall.
  void Note(uint64_t number, int64_t now_us);
  // Numbers [first, first + count) that have one time.
  struct Interval {
    uint64_t first = 0, count = 0;
    int64_t at_us = 0;
    bool has(uint64_t number) const { return number - first < count; }
  };
  // Returns the numbers that were drawn when `number` was; nullopt if it was drawn before the first
  // one that was noted, or after `latest`.
  std::optional<Interval> Find(uint64_t number, uint64_t latest) const;
  std::optional<int64_t> At(uint64_t number, uint64_t latest) const {
    const std::optional<Interval> found = Find(number, latest);
    return found.has_value() ? std::optional(found->at_us) : std::nullopt;
  }
  // Forgets everything: numbers from before mean nothing from now on.
  void Restart() { samples_.clear(); }

 private:
  static constexpr size_t kMostSamples = 512;
  static constexpr int64_t kApartUs = 50'000;
  struct Sample {
    uint64_t since_first = 0;
    int64_t at_us = 0;
  };
  void Thin();

  uint64_t first_ = 0;
  std::vector<Sample> samples_;
};

}  // namespace prefixd::index
