// Storing own blocks of a sequence: reserve, point at those in staging, send the others, declare
// the ends.
//
// Thread-safe as far as `pages` is not changed meanwhile.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "block/answer.h"
#include "block/tokens.h"
#include "core.h"
#include "own_pages.h"
#include "prefixd/client.h"
#include "space_state.h"

namespace prefixd::client {

// A reservation for a sequence of tokens() tokens.
struct Announced {
  Session session;
  block::ReservePlan plan;
  uint32_t tokens() const {
    return plan.blocks.empty() ? 0 : plan.blocks.back().first_token + plan.blocks.back().tokens;
  }
};

// What is missing of a sequence. `writable`: for each group the mask of rungs in which a block that
// is here needs no writing; the daemon plans to write one of them.
struct ReserveQuestion {
  OpenedUnder opened;
  block::SequenceView sequence;
  uint32_t block_tokens = 0;
  std::vector<uint64_t> writable;
  std::span<const uint32_t> turn_ends{};
  bool seeds = false;  // the pages will be sent: the plan is to tell the seeds of their sums
  base::Deadline deadline;
};
// The plan's blocks go gapless from the sequence's first token, or from a block border, to its end.
absl::StatusOr<Announced> Reserve(Core& core, const SpaceState& space,
                                  const ReserveQuestion& question);

// Whether the daemon wants new blocks in a coarser rung than the finest of `writable`, by the last
// block that the plan leaves to somebody. nullopt: it leaves none.
std::optional<bool> AdvisesCoarser(const block::ReservePlan& plan,
                                   std::span<const uint64_t> writable);

struct PublishRequest {
  OpenedUnder opened;
  block::SequenceView sequence;   // exactly the tokens to store
  uint32_t committed_tokens = 0;  // those before are done
  bool sequence_end = false;
  std::span<const uint32_t> ends{};  // further ends among the tokens, ascending
  bool lease = false;                // on the published pages
  Durability durability = Durability::kRam;
  base::Deadline deadline;
};

// A lease on pages that were published.
struct PublishedLease {
  block::LeaseId lease;
  uint32_t first_block = 0;
  google::protobuf::RepeatedPtrField<v1::GroupPages> pages;
};

struct Published {
  CommitInfo info;
  std::vector<PublishedLease> leases;
  absl::Status status;
  std::optional<bool> coarser{};  // what a new plan advised
};

// Sends only own pages, only blocks that the daemon lacks, a few MiB at a time, so that what was
// published stays published when a later piece fails. Uses `announced` when it fits, and empties it
// when it is used up; a reservation that is not used up and of no further use is abandoned.
Published Publish(Core& core, const SpaceState& space, const OwnPages& pages,
                  const PublishRequest& request, std::optional<Announced>* announced);

}  // namespace prefixd::client
