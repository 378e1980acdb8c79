// Between the public plain structs of client.h and the values of the rooms below.
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
#include "quant/format.h"

namespace prefixd::client {

Status ToPublic(const absl::Status& status);
MatchInfo ToPublic(const block::MatchAnswer& match);

quant::TensorFormat FromPublic(const TensorFormat& format);
quant::KvFormat FromPublic(const KvFormat& format);
TensorFormat ToPublic(const quant::TensorFormat& format);
std::vector<block::ContentKey> FromPublic(std::span<const Content> content);

// The identity that `spec` describes: its layers grouped by SplitLayers, block_tokens as given (0
// is the daemon's to fill). InvalidArgument says which field, value and limit.
absl::StatusOr<block::SpaceIdentity> IdentityOf(const SpaceSpec& spec);

}  // namespace prefixd::client
