// Converts between the public structs of client.h and the library's own values.
//
// Pure functions, thread-safe.
#pragma once
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "block/answer.h"
#include "block/space_identity.h"
#include "block/tokens.h"
#include "prefixd/client.h"

namespace prefixd::client {

Status ToPublic(const absl::Status& status);
MatchInfo ToPublic(const block::MatchAnswer& match);

std::vector<block::ContentKey> FromPublic(std::span<const Content> content);

// Returns the identity that `spec` describes: its layers grouped by SplitLayers, block_tokens as
// given (the daemon fills in 0). InvalidArgument names the field, the value and the limit.
absl::StatusOr<block::SpaceIdentity> IdentityOf(const SpaceSpec& spec);

}  // namespace prefixd::client
