// What the C library takes for an allocation: eight bytes before it, in steps of sixteen.
#pragma once
#include <algorithm>
#include <cstdint>

namespace prefixd::index {

inline constexpr uint64_t Allocated(uint64_t bytes) {
  return bytes == 0 ? 0 : std::max<uint64_t>((bytes + 8 + 15) / 16 * 16, 32);
}

}  // namespace prefixd::index
