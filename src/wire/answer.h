// Answers of Match and Acquire, plans of Reserve, results of Commit.
//
// Pure functions. ToProto is the daemon's side, FromProto the client's: it never trusts a length or
// a number that the caller would index with, and keeps explaining enums (reasons, kinds) of later
// versions as the numbers that they are.
#pragma once
#include <vector>

#include "absl/status/statusor.h"

#include "block/answer.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

struct Answer {
  block::LeaseId lease;
  block::MatchAnswer match;
  std::vector<block::LeasedPage> pages;  // in_ram is not carried
};

// Requires of `pages`: group by group, in position order, one for each block of [0,
// restorable_tokens).
void ToProto(block::LeaseId lease, const block::MatchAnswer& match,
             const std::vector<block::LeasedPage>& pages, v1::Answer* proto);
// `block_tokens` of the space, > 0. DataLoss (a daemon that breaks the contract) for columns of
// other lengths than the blocks of restorable_tokens, a page with fewer slots than tokens, a group
// or rung out of range.
absl::StatusOr<Answer> FromProto(const v1::Answer& proto, uint32_t block_tokens);

void ToProto(const block::ReservePlan& plan, v1::ReserveReply* proto);
// DataLoss for an unknown block state, blocks with a gap or of no tokens, a column that has not one
// rung for each of `groups`.
absl::StatusOr<block::ReservePlan> FromProto(const v1::ReserveReply& proto, uint32_t groups);

void ToProto(const block::CommitAnswer& answer, v1::CommitReply* proto);
block::CommitAnswer FromProto(const v1::CommitReply& proto);

}  // namespace prefixd::wire
