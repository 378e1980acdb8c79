// Checks that Match, Acquire and Reserve share. Internal to the room.
#pragma once
#include "cache/core.h"

namespace prefixd::cache {

absl::Status CheckSequence(const block::SequenceView& sequence);
absl::Status CheckSelection(const SpaceInfo& space, const std::vector<uint32_t>& groups,
                            const std::vector<uint64_t>& rungs);
index::MatchOptions OptionsOf(const Request& request, uint32_t slot);

}  // namespace prefixd::cache
