// Asks the daemon for the cached tokens of a sequence: one round trip that matches, leases, gives
// other leases back and announces the rest.
//
// Thread-safe.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "block/answer.h"
#include "block/tokens.h"
#include "core.h"
#include "leased_pages.h"
#include "prefixd/client.h"

namespace prefixd::client {

struct Question {
  OpenedUnder opened;
  block::SequenceView sequence;
  const BeginOptions& options;
};

struct LookUpAnswer {
  block::MatchAnswer match;
  block::LeaseId lease;                // none if nothing is restorable
  std::shared_ptr<CachedPages> pages;  // null without a lease
  bool in_place = false;               // `pages` are read in the arena
  std::optional<block::ReservePlan> announced;
};

// Returns for each group the mask of rungs in which a stored block need not be written again.
std::vector<uint64_t> WritableRungs(const SpaceState& space, const BeginOptions& options);

// Only matches; changes nothing.
absl::StatusOr<block::MatchAnswer> Match(Core& core, const SpaceState& space,
                                         const Question& question);
// Only hints. Returns the tokens that are in RAM or on the way there.
absl::StatusOr<uint32_t> Prefetch(Core& core, const SpaceState& space, const Question& question);
absl::StatusOr<PinInfo> Pin(Core& core, const SpaceState& space, const Question& question,
                            std::chrono::milliseconds ttl);
absl::StatusOr<uint64_t> Unpin(Core& core, const Session& session, uint64_t pin,
                               base::Deadline deadline);
// Leases what is cached and starts the loading. NotFound if the space's handle is void.
absl::StatusOr<LookUpAnswer> Acquire(Core& core, const std::shared_ptr<SpaceState>& space,
                                     const Question& question);

struct SetQuestion {
  std::shared_ptr<SpaceState> space;
  Question question;
};
// Looks several spaces up at once, with one length. Requires: at least one member, all under one
// session. An error leaves nothing held.
absl::StatusOr<std::vector<LookUpAnswer>> AcquireSet(Core& core,
                                                     std::span<const SetQuestion> members,
                                                     base::Deadline deadline);

}  // namespace prefixd::client
