#include "wire/admin.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/checksum.h"
#include "quant/format.h"
#include "wire/answer.h"
#include "wire/fields.h"
#include "wire/identity.h"
#include "wire/limits.h"

namespace prefixd::wire {
namespace {

// Returns the distinct ladder entries of all groups in order of first sight.
std::vector<std::string> FormatNames(const block::SpaceIdentity& identity) {
  std::vector<std::string> names;
  for (const block::LayerGroup& group : identity.groups) {
    for (const quant::KvFormat& format : group.ladder) {
      std::string name = quant::ToString(format);
      if (std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(std::move(name));
    }
  }
  return names;
}

void WriteCounts(const std::vector<block::NamedCount>& counts,
                 google::protobuf::RepeatedPtrField<v1::Count>* proto) {
  for (const block::NamedCount& count : counts) {
    v1::Count* to = proto->Add();
    to->set_name(count.name);
    to->set_value(count.value);
  }
}

void WriteLatency(const block::NamedLatency& latency, v1::Latency* proto) {
  proto->set_name(latency.name);
  proto->set_count(latency.histogram.count);
  proto->set_sum_us(latency.histogram.sum_us);
  proto->mutable_buckets()->Assign(latency.histogram.buckets.begin(),
                                   latency.histogram.buckets.end());
}

void WriteTiers(const block::TierTokens& tokens, v1::TierTokens* proto) {
  proto->set_ram(tokens.ram);
  proto->set_ssd(tokens.ssd);
  proto->set_remote(tokens.remote);
}

void WriteTokens(const block::SpaceTokens& tokens, v1::SpaceTokens* proto) {
  proto->set_requested(tokens.requested);
  proto->set_matched(tokens.matched);
  WriteTiers(tokens.restorable, proto->mutable_restorable());
  WriteTiers(tokens.used, proto->mutable_used());
}

void WriteAges(const char* name, const block::AgeHistogram& ages, v1::Ages* proto) {
  proto->set_name(name);
  proto->set_count(ages.count);
  proto->set_sum_ms(ages.sum_ms);
  proto->mutable_buckets()->Assign(ages.buckets.begin(), ages.buckets.end());
}

void ToProto(const block::RemoteStats& remote, v1::Remote* proto) {
  proto->set_known(remote.known);
  proto->set_cluster(remote.cluster);
  proto->set_tls(remote.tls);
  proto->set_sealed(remote.sealed);
  for (const block::RemoteServer& server : remote.servers) {
    v1::Remote::Server* const to = proto->add_servers();
    to->set_address(server.address);
    to->set_open(server.open);
    to->set_why(server.why);
    to->set_failed_s(server.failed_s);
    to->set_next_try_s(server.next_try_s);
    to->set_in_flight_bytes(server.in_flight_bytes);
  }
  for (const std::string& warning : remote.warnings) proto->add_warnings(warning);
}

}  // namespace

void ToProto(const block::SpaceSummary& space, v1::SpaceStats* proto) {
  proto->set_space_id(space.id.data(), space.id.size());
  proto->set_model(space.identity.model);
  proto->set_block_tokens(space.identity.block_tokens);
  for (std::string& name : FormatNames(space.identity)) proto->add_formats(std::move(name));
  proto->set_blocks(space.blocks);
  proto->set_holes(space.holes);
  proto->set_ends(space.ends);
  proto->set_stored_tokens(space.stored_tokens);
  proto->set_ram_payload_bytes(space.ram_payload_bytes);
  proto->set_ram_extent_bytes(space.ram_extent_bytes);
  proto->set_ssd_payload_bytes(space.ssd_payload_bytes);
  proto->set_ssd_page_bytes(space.ssd_page_bytes);
  proto->set_dirty_bytes(space.dirty_bytes);
  v1::SpaceLimits* limits = proto->mutable_limits();
  limits->set_ram_floor_bytes(space.limits.ram_floor_bytes);
  limits->set_ram_ceiling_bytes(space.limits.ram_ceiling_bytes);
  limits->set_ssd_ceiling_bytes(space.limits.ssd_ceiling_bytes);
  limits->set_ttl_ms(space.limits.ttl_ms);
  limits->set_ssd_floor_bytes(space.limits.ssd_floor_bytes);
  WriteTokens(space.tokens, proto->mutable_tokens());
}

block::SpaceLimits FromProto(const v1::SpaceLimits& proto) {
  return {.ram_floor_bytes = proto.ram_floor_bytes(),
          .ram_ceiling_bytes = proto.ram_ceiling_bytes(),
          .ssd_ceiling_bytes = proto.ssd_ceiling_bytes(),
          .ttl_ms = proto.ttl_ms(),
          .ssd_floor_bytes = proto.ssd_floor_bytes()};
}

void ToProto(const block::Stats& stats, v1::GetStatsReply* proto) {
  proto->set_epoch(stats.epoch);
  proto->set_version(stats.version);
  proto->set_uptime_s(stats.uptime_s);
  proto->set_ram_budget_bytes(stats.ram_budget_bytes);
  WriteCounts(stats.ram_parts, proto->mutable_ram_parts());
  proto->set_ssd_budget_bytes(stats.ssd_budget_bytes);
  proto->set_ssd_file_bytes(stats.ssd_file_bytes);
  proto->set_dirty_bytes(stats.dirty_bytes);
  proto->set_sessions(stats.sessions);
  proto->set_leases(stats.leases);
  proto->set_leased_bytes(stats.leased_bytes);
  proto->set_reservations(stats.reservations);
  proto->set_pins(stats.pins);
  proto->set_pinned_bytes(stats.pinned_bytes);
  proto->set_snapshot_bytes(stats.snapshot_bytes);
  proto->set_snapshot_share_bytes(stats.snapshot_share_bytes);
  if (stats.remote.on) ToProto(stats.remote, proto->mutable_remote());
  WriteCounts(stats.counters, proto->mutable_counters());
  proto->set_seconds_saved(stats.seconds_saved);
  for (const block::NamedLatency& latency : stats.latencies)
    WriteLatency(latency, proto->add_latencies());
  WriteAges("reuse_gap", stats.ages.reuse_gap, proto->add_ages());
  WriteAges("age_at_hit", stats.ages.age_at_hit, proto->add_ages());
  WriteAges("idle_at_eviction", stats.ages.idle_at_eviction, proto->add_ages());
  WriteAges("lifetime_at_eviction", stats.ages.lifetime_at_eviction, proto->add_ages());
  for (const block::SpaceSummary& space : stats.spaces) ToProto(space, proto->add_spaces());
}

std::string SaltDigest(const std::string& salt) {
  if (salt.empty()) return "";
  return std::string(base::AsText(base::Sha256(base::AsBytes(salt))).substr(0, kSaltDigestBytes));
}

void ToProto(const block::SpaceSummary& space, v1::ListSpacesReply::Space* proto) {
  ToProto(space, proto->mutable_stats());
  *proto->mutable_identity() = ToProto(space.identity);
  proto->mutable_identity()->clear_salt();
  proto->set_salt_digest(SaltDigest(space.identity.salt));
  proto->set_tenant(space.identity.tenant);
}

void ToProto(const block::SpaceIdentity& told, v1::ListSpacesReply::ToldSpace* proto) {
  const block::SpaceId id = block::IdOf(told);
  proto->set_space_id(id.data(), id.size());
  *proto->mutable_identity() = ToProto(told);
  proto->set_tenant(told.tenant);
}

void ToProto(const block::SessionInfo& session, v1::ListSessionsReply::Session* proto) {
  proto->set_session(session.session.value);
  proto->set_worker(session.worker);
  proto->set_library(session.library);
  proto->set_maps_arena(session.slot != block::kNoSlot);
  if (session.slot != block::kNoSlot) proto->set_slot(session.slot);
  proto->set_pid(session.pid);
  proto->set_attached(session.attached);
  proto->set_age_s(session.age_s);
  proto->set_leases(session.leases);
  proto->set_leased_bytes(session.leased_bytes);
  proto->set_reservations(session.reservations);
  proto->set_staging_bytes(session.staging_bytes);
  proto->set_device_pinned_bytes(session.device_pinned_bytes);
  for (const block::NotShared& note : session.not_shared) {
    v1::ListSessionsReply::NotShared* to = proto->add_not_shared();
    to->set_model(note.model);
    to->set_reason(note.reason);
  }
}

void ToProto(const block::LeaseInfo& lease, v1::ListLeasesReply::Lease* proto) {
  proto->set_lease(lease.lease.value);
  proto->set_session(lease.holder.value);
  proto->set_space_id(lease.space.data(), lease.space.size());
  proto->set_tokens(lease.tokens);
  proto->set_pages(lease.pages);
  proto->set_bytes(lease.bytes);
  proto->set_age_s(lease.age_s);
}

void ToProto(const block::PinInfo& pin, v1::ListPinsReply::Pin* proto) {
  proto->set_pin(pin.pin.value);
  proto->set_space_id(pin.space.data(), pin.space.size());
  proto->set_worker(pin.worker);
  proto->set_tokens(pin.tokens);
  proto->set_pages(pin.pages);
  proto->set_bytes(pin.bytes);
  proto->set_age_s(pin.age_s);
  proto->set_left_s(pin.left_s);
}

void ToProto(const block::PastAnswer& past, v1::PastAnswer* proto) {
  v1::Answer answer;  // has the same words on the wire
  ToProto(block::LeaseId{}, past.match, {}, &answer);
  proto->set_request_id(past.request_id);
  proto->set_space_id(past.space.data(), past.space.size());
  proto->set_worker(past.worker);
  proto->set_age_s(past.age_s);
  proto->set_requested_tokens(past.requested_tokens);
  proto->set_matched_tokens(answer.matched_tokens());
  proto->set_restorable_tokens(answer.restorable_tokens());
  proto->set_pending_tokens(answer.pending_tokens());
  proto->set_kind(answer.kind());
  proto->set_match_ended_by(answer.match_ended_by());
  proto->set_diverged_sequences(answer.diverged_sequences());
  proto->mutable_shortened_by()->Swap(answer.mutable_shortened_by());
  proto->set_ram_bytes(answer.ram_bytes());
  proto->set_ssd_bytes(answer.ssd_bytes());
  proto->set_remote_bytes(answer.remote_bytes());
  proto->set_wait_us(past.wait_us);
  proto->set_match_us(past.match_us);
  proto->set_room_us(past.room_us);
  proto->set_remote_us(past.remote_us);
  proto->set_used_tokens(past.used_tokens);
  proto->set_load_us(past.load_us);
  proto->set_first_token_us(past.first_token_us);
}

absl::StatusOr<block::WhyQuery> FromProto(const v1::WhyRequest& proto) {
  PREFIXD_RETURN_IF_ERROR(
      CheckLength("why: request_id", proto.request_id().size(), kMaxRequestIdBytes));
  if (!(proto.below() >= 0 && proto.below() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("why: below is ", proto.below(), ", a share is from 0 to 1"));
  }
  block::WhyQuery query{.request_id = proto.request_id(), .below = proto.below()};
  if (proto.last() > 0) query.last = proto.last();
  return query;
}

void ToProto(const block::HotPrefixes& found, v1::ListPrefixesReply* proto) {
  proto->set_requests(found.requests);
  proto->set_gone(found.gone);
  for (const block::HotPrefix& prefix : found.prefixes) {
    v1::Prefix* const one = proto->add_prefixes();
    one->set_parent(prefix.parent);
    one->set_space_id(prefix.space.data(), prefix.space.size());
    one->set_from_token(prefix.from_token);
    one->set_to_token(prefix.to_token);
    one->set_requests(prefix.requests);
    one->set_age_s(prefix.age_s);
    one->set_ram_bytes(prefix.ram_bytes);
    one->set_ssd_bytes(prefix.ssd_bytes);
    one->set_block_hash(prefix.block_hash.data(), prefix.block_hash.size());
  }
}

absl::Status ReadSpaceId(const std::string& bytes, block::SpaceId* id, bool* given) {
  *given = !bytes.empty();
  return ReadDigest("space_id", bytes, true, id);
}

}  // namespace prefixd::wire
