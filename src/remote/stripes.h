// How a bundle's pages are cut into stripes.
//
// Pure functions, thread-safe.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "remote/bundle.h"

namespace prefixd::remote {

inline uint64_t StripesOf(uint64_t payload_bytes) {
  return (payload_bytes + kStripePayloadBytes - 1) / kStripePayloadBytes;
}

// Returns the runs of each stripe's payload in the pages. Byte: std::byte or const std::byte.
template <typename Byte>
std::vector<std::vector<std::span<Byte>>> CutStripes(std::span<const std::span<Byte>> pages) {
  std::vector<std::vector<std::span<Byte>>> stripes;
  size_t room = 0;  // in the last stripe
  for (std::span<Byte> page : pages) {
    while (!page.empty()) {
      if (room == 0) {
        stripes.emplace_back();
        room = kStripePayloadBytes;
      }
      const size_t bytes = std::min(room, page.size());
      stripes.back().push_back(page.first(bytes));
      page = page.subspan(bytes);
      room -= bytes;
    }
  }
  return stripes;
}

}  // namespace prefixd::remote
