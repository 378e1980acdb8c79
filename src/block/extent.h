// One page's place in the arena: a run of 4 KiB units.
#pragma once
#include <compare>
#include <cstdint>

namespace prefixd::block {

inline constexpr uint64_t kExtentUnit = 4096;

struct Extent {
  uint64_t offset = 0;  // from the start of the arena's data, a multiple of kExtentUnit
  uint64_t bytes = 0;   // of the extent (its size class), >= the page; 0 = none
  explicit operator bool() const { return bytes != 0; }
  auto operator<=>(const Extent&) const = default;
};

}  // namespace prefixd::block
