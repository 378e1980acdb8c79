// vLLM alone, with prefixd and with LMCache: what bench/engines/run measures.
#include <chrono>
#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

#include "bench/common/bench.h"
#include "bench/common/child_process.h"
#include "bench/common/partner.h"
#include "bench/common/workloads.h"

namespace prefixd::bench {
namespace {

constexpr std::chrono::minutes kPatience{30};  // vLLM is installed first, where it is not there
constexpr uint64_t kJudgedTokens = 4096;
const char* const kOurs = "prefixd, RAM";

// The median time to the first token of each system, for prompts of kJudgedTokens.
using Medians = std::map<std::string, double>;

void AddFigure(Bench& bench, const nlohmann::json& said, Medians* medians) {
  Row row{.name = said.at("name"), .figures = {}};
  const uint64_t tokens = said.value("tokens", uint64_t{0});
  if (tokens == kJudgedTokens) (*medians)[row.name] = said.at("median_us");
  if (tokens != 0) row.name = absl::StrCat(tokens, " tokens, ", row.name);
  for (const auto& [name, value] : said.items()) {
    if (value.is_number() && name != "tokens") row.figures.push_back({name, value});
  }
  bench.Add(std::move(row));
}

// V9.
void JudgeWarm(Bench& bench, const Medians& medians, const std::string& peer, double limit) {
  const auto ours = medians.find(kOurs), other = medians.find(peer);
  if (ours == medians.end() || other == medians.end()) return;
  bench.Judge({.name = absl::StrCat("V9 first token of ", kJudgedTokens, " tokens from RAM"),
               .ours = "median " + MicrosText(ours->second),
               .reference = peer + " " + MicrosText(other->second),
               .seen = ours->second / other->second,
               .limit = limit,
               .runs = 1});
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
  Medians medians;
  for (;;) {
    const auto said = (*script)->Hear(kPatience);
    if (!bench.Check(said.ok(), absl::StrCat("engines: ", said.status().message(),
                                             "; bench/engines/run says why"))) {
      return;
    }
    if (said->is_null()) break;
    if (said->contains("note")) {
      bench.Note(said->at("note"));
    } else {
      AddFigure(bench, *said, &medians);
    }
  }
  JudgeWarm(bench, medians, "vLLM's own cache", 1.3);
  JudgeWarm(bench, medians, "LMCache 0.5.6, RAM", 1.0);
}

}  // namespace prefixd::bench
