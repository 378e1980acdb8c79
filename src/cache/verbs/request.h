// Checks and options that the verbs share.
#pragma once
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "cache/cache.h"
#include "cache/context.h"
#include "cache/tables/session.h"

namespace prefixd::cache {

absl::Status CheckSequence(const block::SequenceView& sequence);
absl::Status CheckSelection(const SpaceInfo& space, const std::vector<uint32_t>& groups,
                            const std::vector<uint64_t>& rungs);
index::MatchOptions OptionsOf(const Request& request, uint32_t slot);

}  // namespace prefixd::cache
