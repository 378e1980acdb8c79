#include "client/cli/json.h"

#include "nlohmann/json.hpp"

#include "client/cli/compression.h"
#include "client/cli/names.h"

namespace prefixd::cli {
namespace {

using nlohmann::ordered_json;

std::string Line(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json Counts(const google::protobuf::RepeatedPtrField<v1::Count>& counts) {
  ordered_json json = ordered_json::object();
  for (const v1::Count& count : counts) json[count.name()] = count.value();
  return json;
}

template <typename Texts>
ordered_json List(const Texts& texts) {
  ordered_json json = ordered_json::array();
  for (const std::string& text : texts) json.push_back(text);
  return json;
}

ordered_json Limits(const v1::SpaceLimits& limits) {
  return {{"ram_floor_bytes", limits.ram_floor_bytes()},
          {"ram_ceiling_bytes", limits.ram_ceiling_bytes()},
          {"ssd_floor_bytes", limits.ssd_floor_bytes()},
          {"ssd_ceiling_bytes", limits.ssd_ceiling_bytes()},
          {"ttl_ms", limits.ttl_ms()}};
}

ordered_json Space(const v1::SpaceStats& space) {
  return {{"space_id", HexId(space.space_id())},
          {"model", space.model()},
          {"block_tokens", space.block_tokens()},
          {"formats", List(space.formats())},
          {"blocks", space.blocks()},
          {"holes", space.holes()},
          {"ends", space.ends()},
          {"stored_tokens", space.stored_tokens()},
          {"ram_payload_bytes", space.ram_payload_bytes()},
          {"ram_extent_bytes", space.ram_extent_bytes()},
          {"ssd_payload_bytes", space.ssd_payload_bytes()},
          {"ssd_page_bytes", space.ssd_page_bytes()},
          {"dirty_bytes", space.dirty_bytes()},
          {"limits", Limits(space.limits())}};
}

ordered_json Latency(const v1::Latency& latency) {
  return {{"count", latency.count()},
          {"sum_us", latency.sum_us()},
          {"p50_us", QuantileMicros(latency, 0.5)},
          {"p90_us", QuantileMicros(latency, 0.9)},
          {"p99_us", QuantileMicros(latency, 0.99)}};
}

ordered_json Shortened(const google::protobuf::RepeatedPtrField<v1::Shortening>& by) {
  ordered_json shortened = ordered_json::array();
  for (const v1::Shortening& one : by) {
    ordered_json json = {{"reason", NameOf(one.reason())}, {"tokens_lost", one.tokens_lost()}};
    if (!one.all_groups()) json["group"] = one.group();
    shortened.push_back(std::move(json));
  }
  return shortened;
}

ordered_json Stats(const v1::GetStatsReply& stats) {
  ordered_json json = {{"version", stats.version()},
                       {"uptime_s", stats.uptime_s()},
                       {"ram_budget_bytes", stats.ram_budget_bytes()},
                       {"ram_parts", Counts(stats.ram_parts())},
                       {"arena",
                        {{"shared", stats.arena().shared()},
                         {"file_bytes", stats.arena().file_bytes()},
                         {"adopted_pages", stats.arena().adopted_pages()}}},
                       {"ssd_budget_bytes", stats.ssd_budget_bytes()},
                       {"ssd_file_bytes", stats.ssd_file_bytes()},
                       {"dirty_bytes", stats.dirty_bytes()},
                       {"sessions", stats.sessions()},
                       {"leases", stats.leases()},
                       {"leased_bytes", stats.leased_bytes()},
                       {"reservations", stats.reservations()},
                       {"pins", stats.pins()},
                       {"pinned_bytes", stats.pinned_bytes()},
                       {"counters", Counts(stats.counters())},
                       {"seconds_saved", stats.seconds_saved()}};
  json["latencies"] = ordered_json::object();
  for (const v1::Latency& latency : stats.latencies()) {
    json["latencies"][latency.name()] = Latency(latency);
  }
  json["spaces_hidden"] = stats.spaces_hidden();
  json["spaces"] = ordered_json::array();
  for (const v1::SpaceStats& space : stats.spaces()) json["spaces"].push_back(Space(space));
  return json;
}

ordered_json Settings(
    const google::protobuf::RepeatedPtrField<v1::GetConfigReply::Setting>& settings) {
  ordered_json json = ordered_json::object();
  for (const v1::GetConfigReply::Setting& setting : settings) {
    json[setting.name()] = {{"value", setting.value()}, {"source", setting.source()}};
  }
  return json;
}

}  // namespace

std::string StatusJson(const StatusInput& input) {
  ordered_json json = {{"server", input.address}, {"health", input.health}};
  json.update(Stats(input.stats));
  return Line(json);
}

std::string StatsJson(const v1::GetStatsReply& stats) { return Line(Stats(stats)); }

std::string SpacesJson(const v1::ListSpacesReply& reply) {
  ordered_json spaces = ordered_json::array();
  for (const v1::ListSpacesReply::Space& space : reply.spaces()) {
    ordered_json json = Space(space.stats());
    json["tenant"] = space.tenant();
    json["weights_digest"] = HexId(space.identity().weights_digest());
    json["salt_digest"] = HexId(space.salt_digest());
    json["differing_fields"] = List(space.differing_fields());
    json["compression_ratio"] = ordered_json::object();
    for (const FormatRatio& format : Compression(space.identity())) {
      json["compression_ratio"][format.format] = format.ratio;
    }
    spaces.push_back(std::move(json));
  }
  return Line({{"spaces", std::move(spaces)}});
}

std::string MatchJson(const MatchInput& input) {
  const v1::Answer& answer = input.answer;
  return Line({{"space_id", HexId(input.space.stats().space_id())},
               {"model", input.space.identity().model()},
               {"requested_tokens", input.requested_tokens},
               {"matched_tokens", answer.matched_tokens()},
               {"restorable_tokens", answer.restorable_tokens()},
               {"pending_tokens", answer.pending_tokens()},
               {"kind", NameOf(answer.kind())},
               {"ended_by", NameOf(answer.match_ended_by())},
               {"diverged_sequences", answer.diverged_sequences()},
               {"shortened_by", Shortened(answer.shortened_by())},
               {"ram_bytes", answer.ram_bytes()},
               {"ssd_bytes", answer.ssd_bytes()},
               {"load_us", answer.load_us()}});
}

std::string SessionsJson(const v1::ListSessionsReply& reply) {
  ordered_json sessions = ordered_json::array();
  for (const v1::ListSessionsReply::Session& session : reply.sessions()) {
    ordered_json json = {{"session", HexId(session.session())},
                         {"worker", session.worker()},
                         {"maps_arena", session.maps_arena()},
                         {"pid", session.pid()},
                         {"attached", session.attached()},
                         {"age_s", session.age_s()},
                         {"leases", session.leases()},
                         {"leased_bytes", session.leased_bytes()},
                         {"reservations", session.reservations()},
                         {"staging_bytes", session.staging_bytes()}};
    if (session.maps_arena()) json["slot"] = session.slot();
    json["not_shared"] = ordered_json::array();
    for (const v1::ListSessionsReply::NotShared& note : session.not_shared()) {
      json["not_shared"].push_back({{"model", note.model()}, {"reason", note.reason()}});
    }
    sessions.push_back(std::move(json));
  }
  return Line({{"sessions", std::move(sessions)}});
}

std::string LeasesJson(const v1::ListLeasesReply& reply) {
  ordered_json leases = ordered_json::array();
  for (const v1::ListLeasesReply::Lease& lease : reply.leases()) {
    leases.push_back({{"lease", HexId(lease.lease())},
                      {"session", HexId(lease.session())},
                      {"space_id", HexId(lease.space_id())},
                      {"tokens", lease.tokens()},
                      {"pages", lease.pages()},
                      {"bytes", lease.bytes()},
                      {"age_s", lease.age_s()}});
  }
  return Line({{"leases", std::move(leases)}});
}

std::string EndSessionJson(const v1::EndSessionReply& reply) {
  return Line({{"still_held", reply.still_held()}, {"pid", reply.pid()}});
}

std::string PinJson(const PinInput& input) {
  const v1::PinReply& reply = input.reply;
  return Line({{"pin", HexId(reply.pin())},
               {"space_id", HexId(input.space.stats().space_id())},
               {"requested_tokens", input.requested_tokens},
               {"pinned_tokens", reply.pinned_tokens()},
               {"bytes", reply.bytes()},
               {"ttl_s", input.ttl_s},
               {"ended_by", NameOf(reply.answer().match_ended_by())}});
}

std::string UnpinJson(const v1::UnpinReply& reply) { return Line({{"bytes", reply.bytes()}}); }

std::string PinsJson(const v1::ListPinsReply& reply) {
  ordered_json pins = ordered_json::array();
  for (const v1::ListPinsReply::Pin& pin : reply.pins()) {
    pins.push_back({{"pin", HexId(pin.pin())},
                    {"space_id", HexId(pin.space_id())},
                    {"worker", pin.worker()},
                    {"tokens", pin.tokens()},
                    {"pages", pin.pages()},
                    {"bytes", pin.bytes()},
                    {"age_s", pin.age_s()},
                    {"left_s", pin.left_s()}});
  }
  return Line({{"pins", std::move(pins)}});
}

std::string LimitsJson(const v1::SetSpaceLimitsRequest& request,
                       const v1::SetSpaceLimitsReply& reply) {
  return Line({{"space_id", HexId(request.space_id())},
               {"limits", Limits(request.limits())},
               {"remembered", reply.remembered()}});
}

std::string BudgetJson(const v1::SetBudgetsReply& reply) {
  return Line({{"ram_budget_bytes", reply.ram_budget_bytes()},
               {"ram_used_bytes", reply.ram_used_bytes()},
               {"ram_over_bytes", reply.ram_over_bytes()},
               {"ssd_budget_bytes", reply.ssd_budget_bytes()},
               {"ssd_file_bytes", reply.ssd_file_bytes()}});
}

std::string WhyJson(const v1::WhyReply& reply) {
  ordered_json answers = ordered_json::array();
  for (const v1::PastAnswer& past : reply.answers()) {
    answers.push_back({{"request_id", past.request_id()},
                       {"space_id", HexId(past.space_id())},
                       {"worker", past.worker()},
                       {"age_s", past.age_s()},
                       {"requested_tokens", past.requested_tokens()},
                       {"matched_tokens", past.matched_tokens()},
                       {"restorable_tokens", past.restorable_tokens()},
                       {"pending_tokens", past.pending_tokens()},
                       {"kind", NameOf(past.kind())},
                       {"ended_by", NameOf(past.match_ended_by())},
                       {"diverged_sequences", past.diverged_sequences()},
                       {"shortened_by", Shortened(past.shortened_by())},
                       {"ram_bytes", past.ram_bytes()},
                       {"ssd_bytes", past.ssd_bytes()},
                       {"wait_us", past.wait_us()},
                       {"match_us", past.match_us()},
                       {"room_us", past.room_us()},
                       {"used_tokens", past.used_tokens()},
                       {"load_us", past.load_us()},
                       {"first_token_us", past.first_token_us()}});
  }
  return Line({{"remembered", reply.remembered()}, {"answers", std::move(answers)}});
}

std::string ClearJson(const v1::ClearReply& reply) {
  return Line({{"spaces", reply.spaces()},
               {"bytes", reply.bytes()},
               {"waiting_ssd_bytes", reply.waiting_ssd_bytes()},
               {"border_waits", reply.border_waits()}});
}

std::string PurgeJson(const v1::ClearReply& sum) {
  return Line({{"spaces", sum.spaces()},
               {"bytes", sum.bytes()},
               {"removed_bytes", sum.removed_bytes()},
               {"rewritten_bytes", sum.rewritten_bytes()},
               {"leased_bytes", sum.leased_bytes()}});
}

std::string FlushJson(const v1::FlushReply& reply) {
  return Line({{"flushed_bytes", reply.flushed_bytes()}, {"dirty_bytes", reply.dirty_bytes()}});
}

std::string PrefetchJson(const v1::PrefetchReply::Hint& hint) {
  return Line({{"restorable_tokens", hint.restorable_tokens()},
               {"tokens", hint.tokens()},
               {"bytes", hint.bytes()}});
}

std::string VerifyJson(const v1::VerifyReply& sum) {
  return Line({{"pages", sum.pages()},
               {"bytes", sum.bytes()},
               {"bad", sum.bad()},
               {"unreadable", sum.unreadable()},
               {"in_use", sum.in_use()}});
}

std::string ConfigJson(const v1::GetConfigReply& reply) {
  return Line({{"version", reply.version()},
               {"settings", Settings(reply.settings())},
               {"limits", Settings(reply.limits())}});
}

}  // namespace prefixd::cli
