// Replies of a daemon that has served a little.
#pragma once
#include <string>

#include "prefixd/v1/admin.pb.h"

namespace prefixd::cli {

// 32 bytes: `first`, then zeros.
inline std::string SampleId(unsigned char first) {
  std::string id(32, '\0');
  id[0] = static_cast<char>(first);
  return id;
}

inline v1::SpaceStats SampleSpaceStats(unsigned char id) {
  v1::SpaceStats stats;
  stats.set_space_id(SampleId(id));
  stats.set_model("Qwen3-0.6B");
  stats.set_block_tokens(64);
  stats.add_formats("mlx_affine/8/64/f16");
  stats.set_blocks(10);
  stats.set_holes(1);
  stats.set_ends(4);
  stats.set_stored_tokens(447);
  stats.set_ram_payload_bytes(27'234'816);
  stats.set_ram_extent_bytes(28'000'000);
  stats.set_ssd_payload_bytes(13'631'488);
  stats.set_ssd_page_bytes(13'700'000);
  stats.set_dirty_bytes(13'603'328);
  return stats;
}

inline v1::ListSpacesReply::Space SampleSpace(unsigned char id) {
  v1::ListSpacesReply::Space space;
  *space.mutable_stats() = SampleSpaceStats(id);
  space.set_tenant("local");
  v1::SpaceIdentity* identity = space.mutable_identity();
  identity->set_model("Qwen3-0.6B");
  identity->set_weights_digest(SampleId(0xab));
  identity->mutable_rope()->set_theta(1'000'000);
  identity->mutable_rope()->set_rotary_dims(128);
  v1::LayerGroup* group = identity->add_groups();
  group->set_name("full.0");
  group->set_kind(v1::LAYER_KIND_FULL);
  for (const uint32_t layer : {0u, 1u, 2u, 5u, 7u, 8u}) group->add_layers(layer);
  group->set_kv_heads(8);
  group->set_key_dim(128);
  group->set_value_dim(128);
  return space;
}

inline void AddCount(const std::string& name, uint64_t value,
                     google::protobuf::RepeatedPtrField<v1::Count>* counts) {
  v1::Count* count = counts->Add();
  count->set_name(name);
  count->set_value(value);
}

// A worker that reads in place, one that was cut off, and one over TCP.
inline v1::ListSessionsReply SampleSessions() {
  v1::ListSessionsReply reply;
  for (uint32_t i = 0; i < 3; ++i) {
    v1::ListSessionsReply::Session* session = reply.add_sessions();
    session->set_session(0x5f3a000000000000u + i * 0x10000000000000u);
    session->set_worker("worker-" + std::to_string(i));
    session->set_maps_arena(i < 2);
    if (i < 2) session->set_slot(i);
    if (i < 2) session->set_pid(41'872 + i);
    session->set_attached(i != 1);
    session->set_age_s(190 - 60 * i);
    session->set_leases(2 - i);
    session->set_leased_bytes(uint64_t{2 - i} << 20);
    if (i == 0) session->set_reservations(1);
    if (i == 0) session->set_staging_bytes(uint64_t{64} << 20);
  }
  return reply;
}

inline v1::ListLeasesReply SampleLeases() {
  v1::ListLeasesReply reply;
  v1::ListLeasesReply::Lease* lease = reply.add_leases();
  lease->set_lease(0x11);
  lease->set_session(0x5f3a000000000000u);
  lease->set_space_id(SampleId(0x3f));
  lease->set_tokens(2'048);
  lease->set_pages(448);
  lease->set_bytes(uint64_t{13} << 20);
  lease->set_age_s(4);
  return reply;
}

// One that ends and one that does not.
inline v1::ListPinsReply SamplePins() {
  v1::ListPinsReply reply;
  for (uint32_t i = 0; i < 2; ++i) {
    v1::ListPinsReply::Pin* pin = reply.add_pins();
    pin->set_pin(0x5f3a000000000012u + i);
    pin->set_space_id(SampleId(0x3f));
    pin->set_worker("prefixctl");
    pin->set_tokens(1'777);
    pin->set_pages(112);
    pin->set_bytes(uint64_t{13} << 20);
    pin->set_age_s(240);
    pin->set_left_s(i == 0 ? 3'360 : 0);
  }
  return reply;
}

// 312 requests read 1,024 tokens, 20 of them 9,792.
inline v1::ListPrefixesReply SamplePrefixes() {
  v1::ListPrefixesReply reply;
  v1::Prefix* const all = reply.add_prefixes();
  all->set_space_id(SampleId(0x3f));
  all->set_to_token(1024);
  all->set_requests(312);
  all->set_age_s(4);
  all->set_ram_bytes(uint64_t{12} << 20);
  all->set_ssd_bytes(uint64_t{12} << 20);
  v1::Prefix* const some = reply.add_prefixes();
  *some = *all;
  some->set_parent(1);
  some->set_from_token(1024);
  some->set_to_token(9792);
  some->set_requests(20);
  some->set_ssd_bytes(0);
  reply.set_requests(332);
  return reply;
}

inline v1::WhyReply SampleWhy() {
  v1::WhyReply reply;
  reply.set_remembered(4'096);
  v1::PastAnswer* past = reply.add_answers();
  past->set_request_id("chat-17");
  past->set_space_id(SampleId(0x3f));
  past->set_worker("worker-0");
  past->set_age_s(4);
  past->set_requested_tokens(3'000);
  past->set_matched_tokens(41);
  past->set_restorable_tokens(41);
  past->set_match_ended_by(v1::END_REASON_DIVERGED);
  past->set_diverged_sequences(312);
  past->set_match_us(40);
  v1::PastAnswer* shortened = reply.add_answers();
  shortened->set_request_id("acquire-9");
  shortened->set_worker("w\x1b[31m");
  shortened->set_age_s(61);
  shortened->set_requested_tokens(128);
  shortened->set_matched_tokens(128);
  shortened->set_restorable_tokens(64);
  shortened->set_match_ended_by(v1::END_REASON_REQUEST_ENDED);
  v1::Shortening* by = shortened->add_shortened_by();
  by->set_reason(v1::SHORTEN_REASON_RAM_FULL);
  by->set_tokens_lost(64);
  shortened->set_pending_tokens(10);
  shortened->set_room_us(2'500'000);
  shortened->set_remote_us(2'000);
  shortened->set_remote_bytes(3'000'000);
  return reply;
}

inline v1::GetStatsReply SampleStats() {
  v1::GetStatsReply stats;
  stats.set_version("0.1.0");
  stats.set_uptime_s(3 * 3600 + 12 * 60);
  stats.set_ram_budget_bytes(uint64_t{256} << 20);
  AddCount("arena", uint64_t{104} << 20, stats.mutable_ram_parts());
  AddCount("index", uint64_t{4} << 20, stats.mutable_ram_parts());
  AddCount("in_flight", 0, stats.mutable_ram_parts());
  stats.set_ssd_budget_bytes(uint64_t{1} << 30);
  stats.set_ssd_file_bytes(uint64_t{100} << 20);
  stats.set_dirty_bytes(13'603'328);
  stats.set_sessions(2);
  stats.set_leases(1);
  stats.set_leased_bytes(uint64_t{13} << 20);
  stats.set_pins(2);
  stats.set_pinned_bytes(uint64_t{3} << 20);
  AddCount("match.exact", 3, stats.mutable_counters());
  AddCount("tokens.delivered", 9'998, stats.mutable_counters());
  AddCount("tokens.matched", 10'000, stats.mutable_counters());
  AddCount("tokens.requested", 12'345, stats.mutable_counters());
  AddCount("tokens.restorable", 9'999, stats.mutable_counters());
  AddCount("tokens.used", 9'990, stats.mutable_counters());
  stats.set_seconds_saved(12.44);
  v1::Latency* latency = stats.add_latencies();
  latency->set_name("rpc.acquire");
  latency->set_count(4);
  latency->set_sum_us(4 * 96);
  for (const uint32_t bucket : {0u, 0u, 0u, 0u, 0u, 0u, 4u})
    latency->add_buckets(bucket);  // 4 in [64, 128)
  *stats.add_spaces() = SampleSpaceStats(0x3f);
  stats.mutable_arena()->set_shared(true);
  stats.mutable_arena()->set_file_bytes(uint64_t{240} << 20);
  stats.mutable_arena()->set_adopted_pages(1'024);
  stats.mutable_arena()->set_path("/dev/shm/prefixd-1.arena");
  AddCount("arena", uint64_t{200} << 20, stats.mutable_ram_shares());
  AddCount("index", uint64_t{16} << 20, stats.mutable_ram_shares());
  AddCount("staging", uint64_t{40} << 20, stats.mutable_ram_shares());
  AddCount("ssd", 0, stats.mutable_ram_shares());
  return stats;
}

}  // namespace prefixd::cli
