// SpaceIdentity on the wire and in the rooms.
//
// Pure functions. The tenant never travels: FromProto leaves it empty, ToProto leaves it out.
#pragma once
#include "absl/status/statusor.h"

#include "block/space_identity.h"
#include "prefixd/v1/prefix_cache.pb.h"

namespace prefixd::wire {

// InvalidArgument naming the field for a digest of a wrong length, an unspecified or unknown enum
// value, a number too wide, a list too long. block::NormalizeAndValidate judges what the values
// mean together.
absl::StatusOr<block::SpaceIdentity> FromProto(const v1::SpaceIdentity& proto);
v1::SpaceIdentity ToProto(const block::SpaceIdentity& identity);

}  // namespace prefixd::wire
