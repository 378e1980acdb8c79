// Sizes as people write them: "2GiB", "512 MiB", "1000000", "20%".
#pragma once
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace prefixd::base {

// A number of bytes, or a share of something that only the caller knows.
struct Size {
  uint64_t bytes = 0;
  double percent = 0;  // used if > 0; bytes is then 0
  uint64_t Of(uint64_t whole) const;
};

// Units: none, B, KiB, MiB, GiB, TiB, kB, MB, GB, TB, %. InvalidArgument names the text and what is
// accepted.
absl::StatusOr<Size> ParseSize(const std::string& text);

// Returns "13.5 MiB", "512 B", "2.0 GiB".
std::string FormatBytes(uint64_t bytes);

// Returns the same number in the largest unit in which it is whole: "1536MiB", "2GB", "1000001".
// ParseSize reads it back.
std::string FormatExact(uint64_t bytes);

}  // namespace prefixd::base
