#include "sizing/simulated_ssd.h"

#include <utility>

namespace prefixd::sizing {

size_t SimulatedSsd::CountLeaving(uint64_t keep_after) const {
  const uint64_t after_next = files_ + 2 * FileSize(segment_);
  size_t count = 0;
  for (uint64_t freed = 0; freed + capacity_ < after_next && count < segments_.size(); ++count) {
    if (segments_[count].id > keep_after) break;
    freed += segments_[count].size;
  }
  return count;
}

void SimulatedSsd::Write(std::vector<TraceBlock> blocks, uint64_t size, uint64_t stamp) {
  ++last_id_;
  for (const TraceBlock block : blocks) of_block_[block] = last_id_;
  segments_.push_back({last_id_, size, stamp, std::move(blocks)});
  files_ += size;
  written_ += size;
}

SimulatedSsd::Segment SimulatedSsd::PopOldest() {
  Segment oldest = std::move(segments_.front());
  segments_.pop_front();
  files_ -= oldest.size;
  std::erase_if(oldest.blocks, [&](TraceBlock block) { return of_block_[block] != oldest.id; });
  for (const TraceBlock block : oldest.blocks) of_block_[block] = 0;
  return oldest;
}

}  // namespace prefixd::sizing
