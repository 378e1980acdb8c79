// Storing a sequence's own blocks: Reserve, Put what is missing, declare the end.
//
// Thread-safe as far as `pages` is not changed meanwhile.
#pragma once
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "block/tokens.h"
#include "connection.h"
#include "prefixd/client.h"
#include "sequence_pages.h"
#include "space_state.h"

namespace prefixd::client {

struct PublishRequest {
  OpenedSpace space;
  block::SequenceView sequence;  // exactly the tokens to store
  bool sequence_end = false;
  base::Deadline deadline;
};

struct Published {
  CommitInfo info;
  block::ReservationId unfinished;  // of a publication that failed: for the caller to abandon
  absl::Status status;
};

// Sends only own pages, only blocks that the daemon lacks, a few MiB at a time, so that what was
// published stays published when a later piece fails.
Published Publish(Connection& connection, const SpaceState& space, const SequencePages& pages,
                  const PublishRequest& request);

}  // namespace prefixd::client
