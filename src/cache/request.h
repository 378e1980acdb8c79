// What Match, Acquire and Reserve share: checks, waiting, the time it takes. Internal to the room.
#pragma once
#include <utility>

#include "cache/core.h"

namespace prefixd::cache {

absl::Status CheckSequence(const block::SequenceView& sequence);
absl::Status CheckSelection(const SpaceInfo& space, const std::vector<uint32_t>& groups,
                            const std::vector<uint64_t>& rungs);
index::MatchOptions OptionsOf(const Request& request, uint32_t slot);
// Waits while somebody else has announced tokens of the request that are not stored yet, and the
// session goes on.
void WaitForAnnounced(Core* core, const Request& request, const index::MatchOptions& options,
                      const Session& session, const Patience& patience);

// Where an Acquire spends its time.
class Phases {
 public:
  explicit Phases(const Core* core) : core_(core), begun_us_(core->Now()) {}
  // Microseconds since the last call.
  uint64_t Next() {
    const int64_t now = core_->Now();
    return static_cast<uint64_t>(now - std::exchange(begun_us_, now));
  }
  PhaseTimes times;

 private:
  const Core* const core_;
  int64_t begun_us_;
};

}  // namespace prefixd::cache
