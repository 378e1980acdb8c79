// vLLM alone, with prefixd and with LMCache: what bench/engines/run measures.
#include <chrono>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "bench/common/bench.h"
#include "bench/common/child_process.h"
#include "bench/common/partner.h"
#include "bench/common/workloads.h"

namespace prefixd::bench {
namespace {

// The script installs vLLM first where it is not there.
constexpr std::chrono::minutes kScriptPatience{30};
constexpr uint64_t kJudgedTokens = 4000;
// For prompts of kJudgedTokens: the time to the first token, and its ratio to that of the same
// engine's own cache, by name.
struct Seen {
  double median_us = 0, of_own = 0;
  uint64_t runs = 0;
};
using SeenByName = std::map<std::string, Seen>;

void AddFigure(Bench& bench, const nlohmann::json& said, SeenByName* seen) {
  Row row{.name = said.at("name"), .figures = {}};
  const uint64_t tokens = said.value("tokens", uint64_t{0});
  if (tokens == kJudgedTokens) {
    (*seen)[row.name] = {said.at("median_us"), said.at("of_own_cache_ratio"), said.at("runs")};
  }
  if (tokens != 0) row.name = absl::StrCat(tokens, " tokens, ", row.name);
  for (const auto& [name, value] : said.items()) {
    if (value.is_number() && name != "tokens") row.figures.push_back({name, value});
  }
  bench.Add(std::move(row));
}

std::string Text(const Seen& seen) {
  return absl::StrFormat("median %s, %.2f of its own cache", MicrosText(seen.median_us),
                         seen.of_own);
}

void JudgeWarm(Bench& bench, const SeenByName& seen) {
  const auto ours = seen.find("prefixd, RAM"), peer = seen.find("LMCache 0.5.6, RAM");
  if (ours == seen.end()) return;
  const std::string name = absl::StrCat("V9 first token of ", kJudgedTokens, " tokens from RAM");
  bench.Judge({.name = name,
               .ours = Text(ours->second),
               .seen = ours->second.of_own,
               .limit = 1.3,
               .runs = ours->second.runs});
  if (peer == seen.end()) return;
  bench.Judge({.name = name + ", beside LMCache",
               .ours = Text(ours->second),
               .reference = Text(peer->second),
               .seen = ours->second.of_own / peer->second.of_own,
               .limit = 1.0,
               .runs = peer->second.runs});
}

}  // namespace

void RunEngines(Bench& bench) {
  if (bench.smoke()) return bench.Note("engines: left out, vLLM takes minutes to start");
  const std::filesystem::path source = PREFIXD_SOURCE_DIR;
  std::vector<std::string> command = {source / "bench/engines/run",
                                      std::filesystem::path(ThisProgram()).parent_path()};
  if (bench.quick()) command.push_back("--quick");
  const auto script = Partner::StartProgram(std::move(command));
  if (!bench.Check(script.ok(), script.status().ToString())) return;
  SeenByName seen;
  for (;;) {
    const auto said = (*script)->Hear(kScriptPatience);
    if (!bench.Check(said.ok(), absl::StrCat("engines: ", said.status().message(),
                                             "; bench/engines/run says why"))) {
      return;
    }
    if (said->is_null()) break;
    if (said->contains("note")) {
      bench.Note(said->at("note"));
    } else {
      AddFigure(bench, *said, &seen);
    }
  }
  JudgeWarm(bench, seen);
}

}  // namespace prefixd::bench
