// trace: real workloads through the daemon, beside what its policy and leaf-first LRU reach on
// paper. tests/data/traces/README.md says whose traces
// they are.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/families.h"
#include "bench/common/workloads.h"
#include "bench/trace/file.h"
#include "bench/trace/player.h"
#include "bench/trace/simulation.h"

namespace prefixd::bench {
namespace {

constexpr TraceShape kRamShape{128, 1, 24u << 10};    // of RAM alone
constexpr TraceShape kTierShape{128, 1, 128u << 10};  // an index of six times as many blocks
constexpr uint64_t kAllRequests = 1'000'000;

struct Workload {
  std::string name;
  Trace trace;
};

std::string PercentText(double percent) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %%", percent);
  return text;
}

class Replay {
 public:
  Replay(Bench& bench, const Workload& workload) : bench_(bench), workload_(workload) {}

  // A hit rate half a point below the simulation's is one of another policy.
  void RamAlone(double percent) {
    const RamFit fit = FitRam(kRamShape, Blocks(percent), LongestBlocks(), /*has_ssd=*/false);
    const auto run =
        Run(absl::StrCat("ram-", percent), {.shape = fit.shape, .ram_bytes = fit.ram_bytes});
    if (!bench_.Check(run.ok(), run.status().ToString())) return;
    const TraceResult paper = SimulateSparingLru(workload_.trace, Blocks(percent));
    const TraceResult same = SimulateSparingLru(workload_.trace, fit.blocks);
    const TraceResult plain = SimulateLeafLru(workload_.trace, Blocks(percent));
    const std::string name = absl::StrCat(workload_.name, " ", percent, " %");
    Row row = RowOf(name, fit, *run);
    row.figures.push_back({"simulated_percent", paper.hit_percent()});
    row.figures.push_back({"simulated_with_as_many_blocks_percent", same.hit_percent()});
    row.figures.push_back({"leaf_first_lru_percent", plain.hit_percent()});
    bench_.Add(std::move(row));
    bench_.Judge({.name = name,
                  .ours = "hits " + PercentText(run->result.hit_percent()),
                  .reference = absl::StrCat("on paper ", PercentText(paper.hit_percent()),
                                            ", leaf-first LRU ", PercentText(plain.hit_percent())),
                  .measure = "difference",
                  .seen = run->result.hit_percent() - paper.hit_percent(),
                  .at_most = false,
                  .limit = -0.5,
                  .unit = " points",
                  .runs = run->result.requested});
  }

  // `target`: the issue's, of mooncake_conversation with RAM 2 % : SSD 10 %.
  void Tiers(double ram, double ssd, const std::string& write_share, bool target) {
    const RamFit fit = FitRam(kTierShape, Blocks(ram), LongestBlocks(), /*has_ssd=*/true);
    const uint64_t ssd_bytes = Blocks(ssd) * fit.shape.page_bytes * fit.shape.kv_blocks;
    const auto run =
        Run("tiers-" + write_share, {.shape = fit.shape,
                                     .ram_bytes = fit.ram_bytes,
                                     .ssd_bytes = std::max<uint64_t>(ssd_bytes, 3u << 20),
                                     .write_share = write_share});
    if (!bench_.Check(run.ok(), run.status().ToString())) return;
    const std::string name = absl::StrCat(workload_.name, " RAM ", ram, " % : SSD ", ssd,
                                          " %, write share ", write_share);
    Row row = RowOf(name, fit, *run);
    row.figures.push_back({"writes_a_requested_block", run->result.writes_per_request()});
    row.figures.push_back({"ssd_file_bytes", Number(run->writes.ssd_file_bytes)});
    bench_.Add(std::move(row));
    if (target) JudgeTiers(name, run->result);
  }

 private:
  void JudgeTiers(const std::string& name, const TraceResult& result) {
    bench_.Judge({.name = name,
                  .ours = absl::StrCat("RAM ", PercentText(result.Percent(result.ram_hits)),
                                       ", SSD ", PercentText(result.Percent(result.ssd_hits))),
                  .measure = "hits",
                  .seen = result.hit_percent(),
                  .at_most = false,
                  .limit = 25,
                  .unit = " %",
                  .runs = result.requested});
    bench_.Judge({.name = name + ", SSD writes a requested block",
                  .ours = absl::StrCat(result.ssd_writes, " blocks"),
                  .reference = absl::StrCat(result.requested, " requested"),
                  .seen = result.writes_per_request(),
                  .limit = 0.36,
                  .runs = result.requested});
  }
  uint64_t Blocks(double percent) const {
    return static_cast<uint64_t>(Number(workload_.trace.unique) * percent / 100);
  }
  uint64_t LongestBlocks() const {
    uint64_t longest = 0;
    for (const Trace::Request& request : workload_.trace.requests) {
      longest = std::max<uint64_t>(longest, request.blocks);
    }
    return longest;
  }
  absl::StatusOr<TraceRun> Run(const std::string& line, TraceBudget budget) {
    budget.directory = absl::StrCat(bench_.directory(), "/trace-", workload_.name, "-", line);
    const auto player = TracePlayer::Start(budget);
    if (!player.ok()) return player.status();
    return PlayTrace(workload_.trace, budget.shape, **player);
  }
  static Row RowOf(const std::string& name, const RamFit& fit, const TraceRun& run) {
    const TraceResult& result = run.result;
    return {name,
            {{"room_blocks", Number(fit.blocks)},
             {"ram_hits_percent", result.Percent(result.ram_hits)},
             {"ssd_hits_percent", result.Percent(result.ssd_hits)},
             {"hits_beyond_lease_quota_percent", result.Percent(run.beyond_quota)},
             {"stored_bytes", Number(run.stored_bytes)},
             {"wall_us", run.wall_us},
             {"requested_blocks_a_second", Number(result.requested) / run.wall_us * 1e6}}};
  }

  Bench& bench_;
  const Workload& workload_;
};

std::string PathOf(const std::string& name, bool smoke) {
  return absl::StrCat(PREFIXD_SOURCE_DIR, "/tests/data/traces/",
                      name == "conversation" ? "mooncake_conversation" : name,
                      smoke ? ".head200" : "", ".jsonl.zst");
}

bool IsShipped(const std::string& name) {
  return name == "conversation" || name == "claude_code_a";
}

std::optional<Workload> Load(Bench& bench, const std::string& name, uint64_t requests) {
  const bool shipped = IsShipped(name);
  auto trace = ReadTrace(shipped ? PathOf(name, bench.smoke()) : name, requests);
  if (!bench.Check(trace.ok(), std::string(trace.status().message()))) return std::nullopt;
  Workload workload{shipped ? name : std::filesystem::path(name).filename().string(),
                    *std::move(trace)};
  bench.Add({workload.name,
             {{"requests", Number(workload.trace.requests.size())},
              {"requested_blocks", Number(workload.trace.references.size())},
              {"unique_blocks", Number(workload.trace.unique)}}});
  return workload;
}

void PlayRam(Bench& bench, const std::string& name) {
  const uint64_t requests = bench.Parameter("requests_at_most", 200, 2'500, kAllRequests);
  const std::optional<Workload> workload = Load(bench, name, requests);
  if (!workload.has_value()) return;
  std::vector<double> percents = {1, 2, 5, 10};
  if (bench.smoke()) percents = {50};  // prompts of the head are long beside it
  for (const double percent : percents) Replay(bench, *workload).RamAlone(percent);
}

// Of the whole trace always: what comes back from SSD comes late. A quick run has the line with a
// target alone.
void PlayTiers(Bench& bench, const std::string& name) {
  const bool target = name == "conversation" && !bench.smoke();
  if (bench.quick() && !target) return;
  const std::optional<Workload> workload = Load(bench, name, kAllRequests);
  if (!workload.has_value()) return;
  Replay replay(bench, *workload);
  if (bench.smoke()) return replay.Tiers(50, 80, "30%", false);
  replay.Tiers(2, 10, "30%", target);
  if (!bench.quick()) replay.Tiers(2, 10, "off", false);
}

}  // namespace

void RunTrace(Bench& bench) {
  std::vector<std::string> names = {"conversation", "claude_code_a"};
  if (!bench.trace().empty()) names = {bench.trace()};
  std::vector<Family> families;
  for (const std::string& name : names) {
    families.push_back({"ram", [&] { PlayRam(bench, name); }});
    families.push_back({"tiers", [&] { PlayTiers(bench, name); }});
  }
  families.push_back({"hybrid", [&] { TraceHybrid(bench); }});
  RunFamilies(bench, families);
}

}  // namespace prefixd::bench
