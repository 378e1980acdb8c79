#include <algorithm>

#include "nlohmann/json.hpp"

#include "daemon/page/data.h"
#include "daemon/page/plain_answers.h"
#include "daemon/request_log.h"

namespace prefixd::daemon {
namespace {

using nlohmann::json;

constexpr double kRecentS = 300;
constexpr size_t kMostServers = 64;
constexpr double kHourS = 3600, kDayS = 86400;

json CountsJson(const std::vector<block::NamedCount>& counts) {
  json all = json::array();
  for (const auto& count : counts) {
    if (count.value > 0) all.push_back({{"name", count.name}, {"bytes", count.value}});
  }
  return all;
}

json RamJson(const block::Stats& stats, const PageSource& source) {
  uint64_t used = 0;
  for (const block::NamedCount& part : stats.ram_parts) used += part.value;
  return {{"budget_bytes", stats.ram_budget_bytes},
          {"used_bytes", used},
          {"parts", CountsJson(stats.ram_parts)},
          {"shares", CountsJson(source.RamShares())},
          {"snapshot_bytes", stats.snapshot_bytes}};
}

// Less than an hour tells nothing of a day: then there is no "sizes_a_day".
json SsdJson(const block::Stats& stats) {
  if (stats.ssd_budget_bytes == 0) return nullptr;
  const uint64_t rewritten = CounterOf(stats, "bytes.rewritten");
  const uint64_t written = CounterOf(stats, "bytes.spilled") + rewritten;
  json ssd = {{"budget_bytes", stats.ssd_budget_bytes},
              {"file_bytes", stats.ssd_file_bytes},
              {"dirty_bytes", stats.dirty_bytes},
              {"read_bytes", CounterOf(stats, "bytes.promoted")},
              {"written_bytes", written},
              {"rewritten_bytes", rewritten}};
  if (stats.uptime_s >= kHourS) {
    ssd["sizes_a_day"] = static_cast<double>(written) /
                         static_cast<double>(stats.ssd_budget_bytes) * kDayS / stats.uptime_s;
  }
  return ssd;
}

json FarJson(const block::Stats& stats) {
  if (!stats.remote.on) return nullptr;
  json servers = json::array();
  uint64_t given_up = 0;
  for (const block::RemoteServer& server : stats.remote.servers) {
    given_up += server.open ? 1 : 0;
    if (servers.size() >= kMostServers) continue;
    servers.push_back(
        {{"address", server.address}, {"given_up", server.open}, {"why", server.why}});
  }
  return {{"known", stats.remote.known},
          {"sealed", stats.remote.sealed},
          {"servers_total", stats.remote.servers.size()},
          {"servers_given_up", given_up},
          {"servers", std::move(servers)},
          {"warnings", stats.remote.warnings},
          {"read_bytes", CounterOf(stats, "remote.bytes_loaded")},
          {"written_bytes", CounterOf(stats, "remote.bytes_written")}};
}

json EvictionsJson(const block::Stats& stats) {
  return {{"idle_buckets", stats.ages.idle_at_eviction.buckets},
          {"blocks", stats.ages.idle_at_eviction.count},
          {"median_idle_ms", MedianMs(stats.ages.idle_at_eviction)},
          {"median_reuse_gap_ms", MedianMs(stats.ages.reuse_gap)},
          {"tokens_evicted_before", CounterOf(stats, "tokens.given_up")}};
}

}  // namespace

json StateData(const PageSource& source, const PageHistory& history) {
  const block::Stats stats = source.Stats();
  const cache::ArenaPlace arena = source.Arena();
  json answers = json::array();
  for (const PlainAnswer& plain :
       PlainAnswers(stats, arena, history.Before(stats.uptime_s, kRecentS))) {
    answers.push_back(
        {{"question", plain.question}, {"answer", plain.answer}, {"level", plain.level}});
  }
  return {{"version", stats.version},
          {"epoch", std::to_string(stats.epoch)},
          {"health", source.Health()},
          {"uptime_s", stats.uptime_s},
          {"answers", std::move(answers)},
          {"troubles", Troubles(stats, arena)},
          {"totals", Json(PagePointOf(stats))},
          {"matched", CounterOf(stats, "tokens.matched")},
          {"lookups", CounterOf(stats, "rpc.acquire")},
          {"ram", RamJson(stats, source)},
          {"ssd", SsdJson(stats)},
          {"far", FarJson(stats)},
          {"evictions", EvictionsJson(stats)},
          {"arena_shared", arena.shared},
          {"spaces", stats.spaces.size()},
          {"sessions", stats.sessions},
          {"leases", stats.leases},
          {"leased_bytes", stats.leased_bytes},
          {"reservations", stats.reservations},
          {"pins", stats.pins},
          {"pinned_bytes", stats.pinned_bytes}};
}

}  // namespace prefixd::daemon
