// fleet: what a shared tier gives to many hosts, and what each of its rules gives, on paper.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/workloads.h"
#include "bench/fleet/populations.h"
#include "bench/fleet/simulation.h"
#include "bench/trace/file.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kSeed = 24;
constexpr uint32_t kHostsOfAPopulation = 8;
constexpr double kTokensPerSecond = 5'000;  // that a host is asked for

struct Case {
  const char* name;
  FleetRules rules;
};
constexpr Case kCases[] = {
    {.name = "no shared tier", .rules = {.far = false}},
    {.name = "all rules", .rules = {}},
    {.name = "no write budget", .rules = {.write_budget = false}},
    {.name = "no cost rule", .rules = {.cost = false}},
    {.name = "no EXISTS first", .rules = {.exists_first = false}},
    {.name = "no rule", .rules = {.write_budget = false, .cost = false, .exists_first = false}},
    {.name = "all, and forgets what is gone", .rules = {.forgets_absent = true}},
};

FleetResult Run(const Trace& trace, const FleetShape& shape, const FleetRules& rules,
                uint64_t most_blocks) {
  Populations populations(
      trace, {.populations = std::max(1u, shape.hosts / kHostsOfAPopulation),
              .most_blocks = most_blocks,
              .tokens_per_s = kTokensPerSecond * std::min(shape.hosts, kHostsOfAPopulation),
              .seed = kSeed});
  Fleet fleet(shape, rules, kSeed);
  for (const Populations::Request& request : populations.requests()) {
    fleet.Serve(request.at_us, populations.PathOf(request));
  }
  return fleet.result();
}

Row RowOf(const std::string& name, const FleetShape& shape, const FleetResult& result) {
  const double tokens = Number(std::max<uint64_t>(result.tokens(), 1));
  const double seconds = std::max(static_cast<double>(result.duration_us) / 1e6, 1e-6);
  const double network = shape.storage_bytes_per_s * seconds;
  const double late = 100 * Number(result.late) / Number(std::max<uint64_t>(result.requests, 1));
  Row row{name,
          {{"local_percent", 100 * Number(result.local) / tokens},
           {"far_percent", 100 * Number(result.far) / tokens},
           {"none_percent", 100 * Number(result.none) / tokens},
           {"B_read_a_token", std::round(Number(result.read_bytes) / tokens)},
           {"B_written_a_token", std::round(Number(result.written_bytes) / tokens)},
           {"of_network_read_percent", 100 * Number(result.read_bytes) / network},
           {"of_network_written_percent", 100 * Number(result.written_bytes) / network},
           {"first_token_us", result.first_token_us / Number(result.requests)}}};
  if (late > 0) row.figures.push_back({"late_requests_percent", late});
  if (result.not_worth > 0) {
    row.figures.push_back({"not_worth_it_percent", 100 * Number(result.not_worth) / tokens});
  }
  return row;
}

class Table {
 public:
  Table(Bench& bench, const std::string& name, const Trace& trace, uint64_t most_blocks)
      : bench_(bench), name_(name), trace_(trace), most_blocks_(most_blocks) {}

  void Add(uint32_t hosts) {
    for (const Routing routing : {Routing::kRoundRobin, Routing::kPrefix}) {
      for (const Case& each : kCases) Add(hosts, each, routing);
    }
  }
  // A prefill so fast that loading pays at the network's speed alone, not at the speed that the
  // daemon expects before it has loaded anything.
  void AddFastPrefill(uint32_t hosts) {
    const FleetShape shape{.hosts = hosts, .prefill_tokens_per_s = 20'000};
    for (const bool cost : {true, false}) {
      const FleetResult result = Run(trace_, shape, {.cost = cost}, most_blocks_);
      bench_.Add(
          RowOf(absl::StrCat(name_, ", ", hosts, " hosts, prefix, prefill of 20,000 tokens/s, ",
                             cost ? "all rules" : "no cost rule"),
                shape, result));
    }
  }

 private:
  void Add(uint32_t hosts, const Case& each, Routing routing) {
    const FleetShape shape{.hosts = hosts};
    FleetRules rules = each.rules;
    rules.routing = routing;
    const FleetResult result = Run(trace_, shape, rules, most_blocks_);
    bench_.Check(result.tokens() > 0, absl::StrCat(name_, ": no request was served"));
    bench_.Add(
        RowOf(absl::StrCat(name_, ", ", hosts, " hosts, ",
                           routing == Routing::kPrefix ? "prefix, " : "in turn, ", each.name),
              shape, result));
  }

  Bench& bench_;
  const std::string name_;
  const Trace& trace_;
  const uint64_t most_blocks_;
};

std::string PathOf(const std::string& name, bool smoke) {
  if (name != "conversation" && name != "claude_code_a") return name;
  return absl::StrCat(PREFIXD_SOURCE_DIR, "/tests/data/traces/",
                      name == "conversation" ? "mooncake_conversation" : name,
                      smoke ? ".head200" : "", ".jsonl.zst");
}

}  // namespace

void RunFleet(Bench& bench) {
  const uint64_t most = bench.Parameter("blocks_asked_for_by_a_population", 3'000, 12'000, 100'000);
  const uint64_t largest = bench.Parameter("hosts_at_most", 16, 1'000);
  const FleetShape shape;
  bench.Parameter("ram_of_a_host_bytes", shape.ram_bytes, shape.ram_bytes);
  bench.Parameter("shared_tier_bytes", shape.far_bytes, shape.far_bytes);
  const FleetRules rules;
  bench.Parameter("written_a_host_bytes_per_s", rules.write_bytes_per_s, rules.write_bytes_per_s);
  std::vector<std::string> names = {bench.trace()};
  if (bench.trace().empty()) names = {"conversation", "claude_code_a"};
  for (const std::string& name : names) {
    const auto trace = ReadTrace(PathOf(name, bench.smoke()));
    if (!bench.Check(trace.ok(), std::string(trace.status().message()))) return;
    Table table(bench, std::filesystem::path(name).filename().string(), *trace, most);
    for (const uint32_t hosts : {8u, 40u, 200u, 1'000u}) {
      const bool between = hosts == 40 || hosts == 200;
      if (hosts <= largest && !(bench.quick() && between)) table.Add(hosts);
    }
    table.AddFastPrefill(8);
  }
}

}  // namespace prefixd::bench
