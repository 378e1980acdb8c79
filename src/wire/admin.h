// Stats and lists of spaces, sessions and leases on the wire.
//
// Pure functions.
#pragma once
#include "absl/status/statusor.h"

#include "block/answer.h"
#include "prefixd/v1/admin.pb.h"

namespace prefixd::wire {

void ToProto(const block::SpaceSummary& space, v1::SpaceStats* proto);
void ToProto(const block::Stats& stats, v1::GetStatsReply* proto);

// Writes a space summary with its identity, tenant included, and a digest in place of the salt.
void ToProto(const block::SpaceSummary& space, v1::ListSpacesReply::Space* proto);
// A space that another host told of, but for `host` and `age_s`. Requires: it has no salt.
void ToProto(const block::SpaceIdentity& told, v1::ListSpacesReply::ToldSpace* proto);

inline constexpr size_t kSaltDigestBytes = 8;
// Returns what people see of a salt: the first bytes of its SHA-256. Empty for no salt.
std::string SaltDigest(const std::string& salt);
void ToProto(const block::SessionInfo& session, v1::ListSessionsReply::Session* proto);
void ToProto(const block::LeaseInfo& lease, v1::ListLeasesReply::Lease* proto);

void ToProto(const block::PinInfo& pin, v1::ListPinsReply::Pin* proto);

void ToProto(const block::PastAnswer& past, v1::PastAnswer* proto);
// InvalidArgument for a share outside [0, 1] or too long an id.
absl::StatusOr<block::WhyQuery> FromProto(const v1::WhyRequest& proto);
void ToProto(const block::HotPrefixes& found, v1::ListPrefixesReply* proto);

block::SpaceLimits FromProto(const v1::SpaceLimits& proto);

// Reads a space id of 32 bytes, or an empty one, for which `given` is false. InvalidArgument for
// any other length.
absl::Status ReadSpaceId(const std::string& bytes, block::SpaceId* id, bool* given);

}  // namespace prefixd::wire
