// Token sequences on the wire.
//
// Pure functions.
#pragma once
#include "absl/status/statusor.h"

#include "block/ids.h"
#include "block/request.h"
#include "block/tokens.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

// Returns a request that sets space, tokens and content alone. InvalidArgument for no tokens, more
// than kMaxTokens, a digest that is not 32 bytes, or content that ValidateContent refuses.
absl::StatusOr<block::Request> FromProto(const v1::Sequence& proto);
void ToProto(block::SpaceHandle space, const block::SequenceView& sequence, v1::Sequence* proto);

}  // namespace prefixd::wire
