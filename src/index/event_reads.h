// What PrefixIndex gives an EventReader.
#pragma once
#include <cstdint>
#include <vector>

#include "block/events.h"

namespace prefixd::index {

struct EventsRead {
  std::vector<block::BlockEvent> events;
  uint64_t last = 0;  // sequence of the last event that was read, also if the query left it out
  bool loading = false;
};
struct StoredRead {
  std::vector<block::StoredBlock> blocks;
  uint64_t sequence = 0;  // of the last event when they were read
};

}  // namespace prefixd::index
