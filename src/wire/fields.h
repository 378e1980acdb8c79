// Checks that every FromProto shares: enum values, digest lengths, narrow integers. Private to this
// room.
#pragma once
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"

namespace prefixd::wire {

// Reads an enum of a request. Its values are those of the wire, from 1 to `last` without a gap.
// InvalidArgument for 0 (the caller forgot the field) and above `last` (a later version's).
template <typename Enum>
absl::Status ReadEnum(const std::string& field, int value, Enum last, Enum* target) {
  if (value < 1 || value > static_cast<int>(last)) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value,
                                                   value == 0 ? " (unspecified)" : "",
                                                   ", known are 1 to ", static_cast<int>(last)));
  }
  *target = static_cast<Enum>(value);
  return absl::OkStatus();
}

// Reads an enum of a reply, which only explains. Keeps a later version's value as the number that
// it is; below 0 or above 255 becomes 0.
template <typename Enum>
Enum ExplainingEnum(int value) {
  return static_cast<Enum>(value < 0 || value > 255 ? 0 : value);
}

template <typename Int>
absl::Status ReadNarrow(const std::string& field, uint32_t value, Int* target) {
  if (value > std::numeric_limits<Int>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", value, ", at most ",
                     static_cast<uint32_t>(std::numeric_limits<Int>::max())));
  }
  *target = static_cast<Int>(value);
  return absl::OkStatus();
}

inline absl::Status CheckCount(const std::string& field, uint64_t seen, uint64_t most) {
  if (seen <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " has ", seen, " entries, at most ", most));
}

inline absl::Status CheckLength(const std::string& field, uint64_t seen, uint64_t most) {
  if (seen <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " has ", seen, " bytes, at most ", most));
}

// Reads a digest of 32 bytes. If `may_be_empty` it may be empty, which leaves zeros: "none".
absl::Status ReadDigest(const std::string& field, const std::string& bytes, bool may_be_empty,
                        base::Digest256* digest);
// Returns the bytes of a digest; empty for all zeros.
std::string DigestBytes(const base::Digest256& digest);

}  // namespace prefixd::wire
