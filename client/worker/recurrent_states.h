// The running states of a sequence's kGatedDelta layers, beside the Sequence that holds its K and
// V.
//
// A plain value; belongs to one sequence at a time. A model without such layers leaves it empty.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace prefixd::worker {

struct RecurrentState {
  static constexpr uint32_t kNowhere = ~uint32_t{0};
  uint32_t tokens = kNowhere;  // tokens that the state has taken in
  std::vector<float> values{};

  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(values)); }
};
using RecurrentStates = std::vector<RecurrentState>;  // [model layer]; empty for other types

}  // namespace prefixd::worker
