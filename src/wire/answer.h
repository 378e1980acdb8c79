// Answers of Match and Acquire, plans of Reserve, results of Commit, events of leases.
//
// Pure functions. ToProto is the daemon's side, FromProto the client's. FromProto never trusts a
// length or a number that the caller would index with. It keeps explaining enums (reasons, kinds)
// of later versions as the numbers that they are.
#pragma once
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "block/answer.h"
#include "block/layer_group.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

struct Answer {
  block::LeaseId lease;
  block::MatchAnswer match;
  std::vector<block::LeasedPage> pages;  // in_ram: the whole group is in RAM
};

// Requires: `pages` are group by group, in position order, one for each block up to
// restorable_tokens, or none. The caller sets a table and what was reserved.
void ToProto(block::LeaseId lease, const block::MatchAnswer& match,
             const std::vector<block::LeasedPage>& pages, v1::Answer* proto);
// Reads an answer; a table as the columns that it stands for. `block_tokens` is the space's, > 0.
// `kinds` are those of the space's groups; none: all are kFull. DataLoss (a daemon that breaks the
// contract) for more tokens restorable than matched, columns of other lengths than the blocks of
// restorable_tokens, a page with fewer slots than tokens, a group or rung out of range.
absl::StatusOr<Answer> FromProto(const v1::Answer& proto, uint32_t block_tokens,
                                 std::span<const block::LayerKind> kinds = {});

void ToProto(const block::ReservePlan& plan, v1::ReserveReply* proto);
// DataLoss for an unknown block state, blocks with a gap or of no tokens, rungs that are not one
// for each of `groups`, seeds that are neither none nor one for each, or snapshots that do not
// ascend within the blocks or are more than kMaxSnapshots.
absl::StatusOr<block::ReservePlan> FromProto(const v1::ReserveReply& proto, uint32_t groups);

void ToProto(const block::CommitAnswer& answer, v1::CommitReply* proto);
// Reads all but lease and pages.
block::CommitAnswer FromProto(const v1::CommitReply& proto);
// Reads lease and pages too. DataLoss as for an Answer. The last page has as many tokens as slots.
absl::StatusOr<block::CommitAnswer> FromProto(const v1::CommitReply& proto, uint32_t block_tokens,
                                              std::span<const block::LayerKind> kinds = {});

struct LeaseReady {
  block::LeaseId lease;
  uint32_t group = 0;
  // Pages whose offset the answer did not give. Only group, first_token, in_ram and offset are set.
  std::vector<block::LeasedPage> pages;
};
void ToProto(const LeaseReady& ready, v1::LeaseReady* proto);
// DataLoss for a group out of range or columns of different lengths. The client checks the offsets
// against what it has mapped.
absl::StatusOr<LeaseReady> FromProto(const v1::LeaseReady& proto);

struct LeaseFailed {
  block::LeaseId lease;
  uint32_t group = 0;
  uint32_t usable_tokens = 0;
  block::ShortenReason reason = block::ShortenReason::kEvicted;
};
void ToProto(const LeaseFailed& failed, v1::LeaseFailed* proto);
LeaseFailed FromProto(const v1::LeaseFailed& proto);

}  // namespace prefixd::wire
