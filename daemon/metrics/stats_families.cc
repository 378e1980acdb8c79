#include "daemon/metrics/stats_families.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_replace.h"

#include "base/utf8.h"
#include "block/names.h"
#include "daemon/metrics/counter_rules.h"
#include "daemon/request_log.h"

namespace prefixd::daemon {
namespace {

// More servers than that have no series of their own.
constexpr size_t kMostServers = 64;
constexpr char kRpc[] = "rpc.";
constexpr char kRefused[] = ".refused.";

double Number(uint64_t value) { return static_cast<double>(value); }

void AddByRule(const CounterRule& rule, std::string_view value, double count, Families* families) {
  const double shown = count * rule.unit;
  const std::string text(value);
  if (rule.label == nullptr) {
    rule.kind == Kind::kGauge ? families->Gauge(rule.metric, rule.help, shown)
                              : families->Counter(rule.metric, rule.help, shown);
  } else {
    rule.kind == Kind::kGauge
        ? families->Gauge(rule.metric, rule.help, shown, {{rule.label, text}})
        : families->Counter(rule.metric, rule.help, shown, {{rule.label, text}});
  }
}

bool IsShown(const CounterRule& rule, const block::Stats& stats) {
  switch (rule.shown) {
    case Shown::kAlways:
      return true;
    case Shown::kWithSsd:
      return stats.ssd_budget_bytes > 0;
    case Shown::kWithRemote:
      return stats.remote.on;
    case Shown::kOnceCounted:
      return false;
  }
  return false;
}

using Counts = std::map<std::string_view, uint64_t>;

// The values that a prefix's label can have, where they are few and known.
std::vector<std::string> KnownValues(std::string_view prefix) {
  std::vector<std::string> values;
  const auto add = [&](auto first, auto last) {
    for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i)
      values.emplace_back(block::NameOf(static_cast<decltype(first)>(i)));
  };
  if (prefix == "shortened.*" || prefix == "tokens.lost.*")
    add(block::ShortenReason::kEvicted, block::ShortenReason::kCommonLength);
  if (prefix == "match.*" || prefix == "tokens.restorable.*")
    add(block::MatchKind::kExact, block::MatchKind::kNone);
  if (prefix == "ended.*") add(block::EndReason::kRequestEnded, block::EndReason::kIndexLoading);
  return values;
}

void AddPrefix(const CounterRule& rule, const Counts& counts, Families* families) {
  const std::string_view start = rule.counter.substr(0, rule.counter.size() - 1);
  std::map<std::string, uint64_t> values;
  for (std::string& value : KnownValues(rule.counter)) values.emplace(std::move(value), 0);
  for (auto it = counts.lower_bound(start); it != counts.end() && it->first.starts_with(start);
       ++it) {
    if (RuleFor(it->first) == &rule)
      values[std::string(it->first.substr(start.size()))] = it->second;
  }
  for (const auto& [value, count] : values) AddByRule(rule, value, Number(count), families);
}

void AddCounters(const block::Stats& stats, Families* families) {
  Counts counts;
  for (const block::NamedCount& count : stats.counters) counts[count.name] += count.value;
  for (const CounterRule& rule : CounterRules()) {
    if (rule.metric == nullptr) continue;
    if (rule.is_prefix()) {
      AddPrefix(rule, counts, families);
      continue;
    }
    const auto found = counts.find(rule.counter);
    if (found == counts.end() && !IsShown(rule, stats)) continue;
    const double count = found == counts.end() ? 0 : Number(found->second);
    AddByRule(rule, rule.value == nullptr ? "" : rule.value, count, families);
  }
  for (const auto& [name, count] : counts) {
    if (RuleFor(name) != nullptr) continue;
    families->Untyped("prefixd_unlisted", "Counters that have no metric of their own yet.",
                      Number(count), {{"name", name}});
  }
}

// Calls that were not refused count as "ok".
void AddRequests(const block::Stats& stats, Families* families) {
  struct Verb {
    uint64_t all = 0, refused = 0;
    std::map<std::string, uint64_t> by_reason;
  };
  std::map<std::string, Verb> verbs;
  for (const block::NamedCount& count : stats.counters) {
    if (!count.name.starts_with(kRpc)) continue;
    const std::string rest = count.name.substr(sizeof(kRpc) - 1);
    const size_t refused = rest.find(kRefused);
    Verb& verb = verbs[rest.substr(0, refused)];
    if (refused == std::string::npos) {
      verb.all += count.value;
    } else {
      verb.refused += count.value;
      verb.by_reason[rest.substr(refused + sizeof(kRefused) - 1)] += count.value;
    }
  }
  for (const auto& [name, verb] : verbs) {
    const char* const metric = "prefixd_requests_total";
    const char* const help = "Calls by verb and result: ok, or why they were refused.";
    families->Counter(metric, help, Number(verb.all - std::min(verb.all, verb.refused)),
                      {{"verb", name}, {"result", "ok"}});
    for (const auto& [reason, count] : verb.by_reason)
      families->Counter(metric, help, Number(count), {{"verb", name}, {"result", reason}});
  }
}

void AddLatency(const block::NamedLatency& latency, Families* families) {
  const std::string& name = latency.name;
  const block::LatencyHistogram& times = latency.histogram;
  if (name.starts_with(kRpc)) {
    families->Histogram(kRequestDuration, "How long calls took in the daemon, by verb.", times,
                        {{"verb", name.substr(sizeof(kRpc) - 1)}});
  } else if (name.starts_with("acquire.")) {
    families->Histogram(
        "prefixd_lookup_phase_duration_seconds",
        "Where the time of lookups went: waiting for another worker (wait), finding "
        "and leasing pages (match), making room for pages on SSD (room), asking the "
        "shared store (remote).",
        times, {{"phase", name.substr(sizeof("acquire.") - 1)}});
  } else if (name == "load") {
    families->Histogram("prefixd_worker_load_duration_seconds",
                        "From a lookup's answer to the last byte, as workers measured it.", times);
  } else if (name == "first_token") {
    families->Histogram("prefixd_worker_first_token_duration_seconds",
                        "From a request to its first token, as workers measured it.", times);
  } else {
    families->Histogram("prefixd_operation_duration_seconds",
                        "How long the daemon's own work took, by what it was.", times,
                        {{"operation", absl::StrReplaceAll(name, {{".", "_"}})}});
  }
}

void AddLatencies(const block::Stats& stats, Families* families) {
  std::map<std::string, block::LatencyHistogram> known;  // there before they count
  for (const char* const name : {"acquire.match", "acquire.remote", "acquire.room", "acquire.wait",
                                 "first_token", "load", "rpc.acquire"}) {
    known[name];
  }
  for (const block::NamedLatency& latency : stats.latencies)
    known[latency.name] = latency.histogram;
  for (const auto& [name, histogram] : known) AddLatency({name, histogram}, families);
}

void AddAges(const block::BlockAges& ages, Families* families) {
  families->Histogram("prefixd_block_reuse_gap_seconds",
                      "When a request reads a block: time since its last use.", ages.reuse_gap);
  families->Histogram("prefixd_block_age_at_hit_seconds",
                      "When a request reads a block: time since it was stored.", ages.age_at_hit);
  families->Histogram("prefixd_block_idle_at_eviction_seconds",
                      "When RAM gives a block up: time since its last use.", ages.idle_at_eviction);
  families->Histogram("prefixd_block_lifetime_at_eviction_seconds",
                      "When RAM gives a block up: time since it was stored.",
                      ages.lifetime_at_eviction);
}

void AddRam(const block::Stats& stats, Families* families) {
  families->Gauge("prefixd_ram_budget_bytes", "The RAM budget in force.",
                  Number(stats.ram_budget_bytes));
  for (const block::NamedCount& part : stats.ram_parts) {
    families->Gauge("prefixd_ram_used_bytes", "What the RAM budget is used for, by part.",
                    Number(part.value), {{"part", absl::StrReplaceAll(part.name, {{" ", "_"}})}});
  }
  const std::tuple<const char*, const char*, uint64_t> gauges[] = {
      {"prefixd_dirty_bytes", "Bytes of pages that are in RAM only.", stats.dirty_bytes},
      {"prefixd_sessions", "Workers that are attached.", stats.sessions},
      {"prefixd_leases", "Leases that workers hold.", stats.leases},
      {"prefixd_leased_bytes", "Bytes of pages under lease, each page once.", stats.leased_bytes},
      {"prefixd_reservations", "Reservations of workers that are storing.", stats.reservations},
      {"prefixd_pins", "Pins.", stats.pins},
      {"prefixd_pinned_bytes", "Bytes of pinned pages, each page once.", stats.pinned_bytes},
      {"prefixd_snapshot_bytes", "Bytes of RAM that snapshots of recurrent states take.",
       stats.snapshot_bytes},
      {"prefixd_snapshot_share_bytes", "The most that they may take.", stats.snapshot_share_bytes}};
  for (const auto& [name, help, value] : gauges) families->Gauge(name, help, Number(value));
}

// Returns bytes of pages written for each byte that had to be; prefixd_disk_written_bytes_total
// counts the metadata too.
double WriteAmplification(const block::Stats& stats) {
  const double first = Number(CounterOf(stats, "bytes.spilled"));
  return first == 0 ? 1 : (first + Number(CounterOf(stats, "bytes.rewritten"))) / first;
}

void AddSsd(const block::Stats& stats, Families* families) {
  families->Gauge("prefixd_ssd_budget_bytes", "The SSD budget in force; 0: no SSD tier.",
                  Number(stats.ssd_budget_bytes));
  if (stats.ssd_budget_bytes == 0) return;
  families->Gauge("prefixd_ssd_file_bytes", "Bytes that the SSD tier's files take on the disk.",
                  Number(stats.ssd_file_bytes));
  families->Gauge("prefixd_ssd_write_amplification_ratio",
                  "Bytes of pages written since the start, for each byte of a new page.",
                  WriteAmplification(stats));
}

void AddRemote(const block::RemoteStats& remote, Families* families) {
  families->Gauge("prefixd_remote_configured", "1 if hosts share a store.", remote.on ? 1 : 0);
  if (!remote.on) return;
  families->Gauge("prefixd_remote_known",
                  "1 once it is known which server of the shared store has what.",
                  remote.known ? 1 : 0);
  families->Gauge("prefixd_remote_sealed", "1 if what is stored there is encrypted.",
                  remote.sealed ? 1 : 0);
  families->Gauge("prefixd_remote_warnings",
                  "Settings of the servers that cost hits; prefixctl status names them.",
                  Number(uint64_t{remote.warnings.size()}));
  const auto given_up = std::ranges::count(remote.servers, true, &block::RemoteServer::open);
  const char* const servers = "prefixd_remote_servers";
  const char* const help = "Servers of the shared store: those in use, and those given up for now.";
  families->Gauge(servers, help,
                  Number(uint64_t{remote.servers.size()}) - static_cast<double>(given_up),
                  {{"state", "in_use"}});
  families->Gauge(servers, help, static_cast<double>(given_up), {{"state", "given_up"}});
  for (size_t i = 0; i < std::min(kMostServers, remote.servers.size()); ++i) {
    const block::RemoteServer& server = remote.servers[i];
    const std::string address = base::Utf8Prefix(server.address, 128);
    families->Gauge("prefixd_remote_server_up", "0 while this server is given up.",
                    server.open ? 0 : 1, {{"server", address}});
    families->Gauge("prefixd_remote_server_in_flight_bytes",
                    "Bytes on their way from and to this server.", Number(server.in_flight_bytes),
                    {{"server", address}});
  }
}

}  // namespace

void AddStats(const block::Stats& stats, Families* families) {
  families->Gauge("prefixd_build_info", "1; the version that runs.", 1,
                  {{"version", stats.version}});
  families->Gauge("prefixd_uptime_seconds", "Time since the cache was opened.", stats.uptime_s);
  AddRequests(stats, families);
  AddCounters(stats, families);
  families->Gauge("prefixd_prefill_saved_seconds",
                  "Prefill time saved, less the time to load; it falls where loading took longer.",
                  stats.seconds_saved);
  AddRam(stats, families);
  AddSsd(stats, families);
  AddRemote(stats.remote, families);
  AddLatencies(stats, families);
  AddAges(stats.ages, families);
}

}  // namespace prefixd::daemon
