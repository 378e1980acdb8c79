// Stores own blocks of a sequence: reserves, points at those in staging, sends the others, declares
// the ends.
//
// Thread-safe as long as `pages` is not changed meanwhile.
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

// Asks what the cache lacks of a sequence. `writable`: for each group the mask of rungs in which a
// stored block need not be written again; the daemon plans to write one of them.
struct ReserveQuestion {
  OpenedUnder opened;
  block::SequenceView sequence;
  uint32_t block_tokens = 0;
  std::vector<uint64_t> writable;
  std::span<const uint32_t> turn_ends{};
  bool seeds = false;  // the pages will be sent: the plan should tell the seeds of their sums
  base::Deadline deadline;
};
// Makes the reservation. The plan's blocks follow each other without gaps from the sequence's first
// token, or from a block border, to its end.
absl::StatusOr<Announced> Reserve(Core& core, const SpaceState& space,
                                  const ReserveQuestion& question);

// Returns whether the daemon wants new blocks in a coarser rung than the finest of `writable`,
// judged by the last block that somebody has to write. nullopt if there is none.
std::optional<bool> AdvisesCoarser(const block::ReservePlan& plan,
                                   std::span<const uint64_t> writable);

struct PublishRequest {
  OpenedUnder opened;
  block::SequenceView sequence;   // exactly the tokens to store
  uint32_t committed_tokens = 0;  // tokens before these are done
  bool sequence_end = false;
  std::span<const uint32_t> ends{};  // further ends among the tokens, ascending
  bool lease = false;                // whether to lease the published pages
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
  std::optional<bool> coarser{};  // what the plan advised, if a new one was made
};

// Sends only own pages, only of blocks that the daemon lacks, a few MiB at a time, so that what was
// published stays published if a later piece fails. Uses `announced` if it fits, and empties it
// when it is used up. Abandons a reservation that is not used up and of no further use.
Published Publish(Core& core, const SpaceState& space, const OwnPages& pages,
                  const PublishRequest& request, std::optional<Announced>* announced);

}  // namespace prefixd::client
