// What a running sequence keeps beside its Sequence: the states of its kGatedDelta layers, and on a
// GPU the pages of its K and V.
//
// Plain values; belong to one sequence at a time, and to the Model that fills them, which must
// outlive them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "client/worker/device.h"

namespace prefixd::worker {

struct RecurrentState {
  static constexpr uint32_t kNowhere = ~uint32_t{0};
  uint32_t tokens = kNowhere;  // tokens that the state has taken in
  DeviceFloats values{};
};

class KvPages;  // device_kv.h

struct RunningState {
  std::vector<RecurrentState> recurrent{};  // [model layer]; empty for other types
  std::shared_ptr<KvPages> pages{};         // null until a step needs it
};

}  // namespace prefixd::worker
