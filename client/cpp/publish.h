// Storing a sequence's own blocks: point at those in staging, send the others, declare the end.
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
#include "prefixd/client.h"
#include "sequence_pages.h"
#include "space_state.h"

namespace prefixd::client {

// A reservation that the lookup made, for a sequence of tokens() tokens.
struct Announced {
  Session session;
  block::ReservePlan plan;
  uint32_t tokens() const {
    return plan.blocks.empty() ? 0 : plan.blocks.back().first_token + plan.blocks.back().tokens;
  }
};

struct PublishRequest {
  OpenedUnder opened;
  block::SequenceView sequence;   // exactly the tokens to store
  uint32_t committed_tokens = 0;  // those before are done
  bool sequence_end = false;
  bool lease = false;  // on the published pages
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
};

// Sends only own pages, only blocks that the daemon lacks, a few MiB at a time, so that what was
// published stays published when a later piece fails. Uses `announced` when it fits, and empties it
// when it is used up; a reservation that is not used up and of no further use is abandoned.
Published Publish(Core& core, const SpaceState& space, const SequencePages& pages,
                  const PublishRequest& request, std::optional<Announced>* announced);

}  // namespace prefixd::client
