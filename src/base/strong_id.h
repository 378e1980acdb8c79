// Ids that cannot be mixed up: StrongId<struct LeaseTag> and StrongId<struct SessionTag> are
// different types. 0 means none.
#pragma once
#include <compare>
#include <cstdint>
#include <utility>

namespace prefixd::base {

template <typename Tag>
struct StrongId {
  uint64_t value = 0;
  explicit operator bool() const { return value != 0; }
  auto operator<=>(const StrongId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value);
  }
};

}  // namespace prefixd::base
