// What the C library takes for an allocation: 8 bytes more, in steps of 16, at least 32.
#pragma once
#include <algorithm>
#include <cstdint>

namespace prefixd::index {

inline constexpr uint64_t Allocated(uint64_t bytes) {
  return bytes == 0 ? 0 : std::max<uint64_t>((bytes + 8 + 15) / 16 * 16, 32);
}

}  // namespace prefixd::index
