// Recurrent and sliding layers on real prompts: how many of the tokens that a model of attention
// alone would find, and what they cost in bytes.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/features.h"
#include "bench/hybrid_replay.h"
#include "bench/snapshot_simulation.h"
#include "bench/trace_file.h"

namespace prefixd::bench {
namespace {

std::string PercentText(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %%", 100 * share);
  return text;
}

std::string PathOf(const Bench& bench) {
  if (!bench.trace().empty()) return bench.trace();
  return absl::StrCat(PREFIXD_SOURCE_DIR, "/tests/data/traces/agent_prompts_taubench",
                      bench.smoke() ? ".head200" : "", ".jsonl.zst");
}

// Three of four layers are recurrent; a snapshot of theirs is worth 64 tokens of KV.
void OnPaper(Bench& bench, const std::vector<std::vector<uint32_t>>& prompts) {
  const SnapshotPolicy policy;
  const SnapshotResult result = SimulateSnapshots(prompts, policy);
  bench.Judge(
      {.name = "3 of 4 layers recurrent, on paper",
       .ours = absl::StrCat("hits ", result.hybrid_hits, " tokens"),
       .reference = absl::StrCat("full attention ", result.full_hits, " of ", result.requested),
       .measure = "ratio",
       .seen = result.hit_ratio(),
       .at_most = false,
       .limit = 0.95,
       .runs = prompts.size()});
  bench.Judge(
      {.name = "3 of 4 layers recurrent, on paper, extra bytes",
       .ours = absl::StrCat(result.snapshots, " snapshots, ", PercentText(result.extra(policy))),
       .reference = absl::StrCat(result.stored, " stored tokens"),
       .measure = "share",
       .seen = result.extra(policy),
       .limit = 0.15,
       .runs = prompts.size()});
}

struct Played {
  OtherLayers layers;
  const char* name;
  uint64_t tight_ram_bytes;  // a budget that keys and values just fit into
};
constexpr Played kPlayed[] = {
    {OtherLayers::kRecurrent, "3 of 4 layers recurrent", uint64_t{36} << 20},
    {OtherLayers::kSliding, "5:1 sliding layers, window 1,024", uint64_t{48} << 20}};

void JudgeOracle(Bench& bench, const std::string& name, const HybridResult& result) {
  bench.Judge({.name = name + ", usable length",
               .ours = absl::StrCat(result.hits, " tokens"),
               .reference = absl::StrCat("oracle ", result.oracle_hits, " tokens"),
               .measure = "requests that differ",
               .seen = static_cast<double>(result.unlike_oracle),
               .limit = 0,
               .runs = result.requests});
}

void JudgeHits(Bench& bench, const std::string& name, const HybridResult& result) {
  bench.Judge(
      {.name = name + ", hits",
       .ours = absl::StrCat("hits ", result.hits, " tokens"),
       .reference = absl::StrCat("full attention ", result.full_hits, " of ", result.requested),
       .measure = "ratio",
       .seen = static_cast<double>(result.hits) / static_cast<double>(result.full_hits),
       .at_most = false,
       .limit = 0.95,
       .runs = result.requests});
  bench.Judge({.name = name + ", extra bytes",
               .ours = "held " + BytesText(static_cast<double>(result.held_bytes)),
               .reference = "keys and values " + BytesText(static_cast<double>(result.full_bytes)),
               .measure = "extra",
               .seen = result.extra(),
               .limit = 0.15,
               .runs = result.requests});
}

// Through the real cache: with room for everything, against the oracle; in a tight budget, where
// snapshots and sliding pages that nobody can need have to go.
void Play(Bench& bench, const std::vector<std::vector<uint32_t>>& prompts, const Played& played) {
  const auto roomy = PlayHybrid(prompts, played.layers, uint64_t{256} << 20);
  if (!bench.Check(roomy.ok(), roomy.status().ToString())) return;
  JudgeOracle(bench, played.name, *roomy);
  const auto tight = PlayHybrid(prompts, played.layers, played.tight_ram_bytes);
  if (!bench.Check(tight.ok(), tight.status().ToString())) return;
  JudgeHits(bench, played.name, *tight);
}

}  // namespace

void FeaturesHybrid(Bench& bench) {
  const auto prompts =
      ReadPrompts(PathOf(bench), bench.Parameter("requests_at_most", 100, 100'000, 100'000));
  if (!bench.Check(prompts.ok(), prompts.status().ToString())) return;
  OnPaper(bench, *prompts);
  for (const Played& played : kPlayed) Play(bench, *prompts, played);
}

}  // namespace prefixd::bench
