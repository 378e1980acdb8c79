#include "client/cli/doctor.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

#include "base/process.h"
#include "base/size.h"
#include "client/cli/table.h"
#include "client/cli/units.h"
#include "client/cli/views.h"
#include "wire/admin_socket.h"

namespace prefixd::cli {
namespace {

std::string SettingOf(const v1::GetConfigReply& config, const std::string& name) {
  for (const v1::GetConfigReply::Setting& setting : config.settings()) {
    if (setting.name() == name) return setting.value();
  }
  return "";
}

// Returns the process that listens at the socket, by the lock file beside it; 0 if it is not told.
uint64_t PidBeside(const Host& host, const std::string& socket) {
  std::ifstream file(host.root + socket + ".lock", std::ios::binary);
  const std::string line(std::istreambuf_iterator<char>(file), {});
  const base::ProcessName process = base::DecodeProcess(line);
  return base::LifeOf(process) == base::Life::kLives ? process.pid : 0;
}

Wanted WantedOf(const Host& host, const DaemonView& daemon) {
  Wanted wanted{.socket = wire::SocketPathOf(daemon.address),
                .directory = "/var/lib/prefixd",
                .arena = "/dev/shm/prefixd.arena",
                .floor_bytes = uint64_t{10} << 30};
  if (!wanted.socket.empty()) wanted.pid = PidBeside(host, wanted.socket);
  if (daemon.config.ok()) {
    const std::string arena = SettingOf(*daemon.config, "arena");
    wanted.arena = arena == "off" ? "" : arena;
    wanted.directory = SettingOf(*daemon.config, "directory");
    wanted.direct_io = SettingOf(*daemon.config, "direct-io") != "off";
    const auto floor = base::ParseSize(SettingOf(*daemon.config, "ssd-floor"));
    if (floor.ok()) wanted.floor_bytes = floor->bytes;
    const auto rate = base::ParseSize(SettingOf(*daemon.config, "ssd-write-rate"));
    if (rate.ok()) wanted.write_rate = rate->bytes;
  }
  if (daemon.stats.ok()) {
    wanted.ram_bytes = daemon.stats->ram_budget_bytes();
    wanted.ssd_bytes = daemon.stats->ssd_budget_bytes();
    wanted.ssd_file_bytes = daemon.stats->ssd_file_bytes();
    if (wanted.ssd_bytes == 0) wanted.directory.clear();
    for (const v1::Count& share : daemon.stats->ram_shares()) {
      if (share.name() == "arena") wanted.arena_bytes = share.value();
    }
  }
  return wanted;
}

Finding Reached(const Host& host, const DaemonView& daemon) {
  Finding finding{.name = "prefixd"};
  const std::string socket = wire::SocketPathOf(daemon.address);
  if (daemon.stats.ok()) {
    finding.found = absl::StrCat("answers at ", daemon.address, ", version ",
                                 PrintableText(daemon.stats->version()));
    if (daemon.stats->version() == daemon.own_version) return finding;
    finding.verdict = Verdict::kBetter;
    finding.change = absl::StrCat("prefixctl is ", daemon.own_version,
                                  ": restart prefixd to run what is installed, it keeps its cache");
    finding.worth = 30;
    return finding;
  }
  const bool there = !socket.empty() && std::ifstream(host.root + socket + ".lock").good();
  finding.found = absl::StrCat("does not answer at ", daemon.address);
  finding.verdict = socket.empty() || there ? Verdict::kWrong : Verdict::kUnknown;
  finding.change =
      "start it (prefixd, or systemctl start prefixd), or say where it listens with "
      "--server; what follows assumes its defaults";
  finding.worth = 100;
  return finding;
}

// What the daemon itself knows to be wrong.
std::vector<Finding> ExamineDaemon(const v1::GetStatsReply& stats) {
  std::vector<Finding> findings;
  const auto if_counted = [&](const char* counter, Finding finding) {
    if (CounterValue(stats, counter) > 0) findings.push_back(std::move(finding));
  };
  if_counted("ssd.failing", {.name = "ssd",
                             .verdict = Verdict::kWrong,
                             .found = "writes fail",
                             .change = "see to the disk: prefixd's log says why",
                             .worth = 95});
  if_counted("ssd.closed", {.name = "ssd",
                            .verdict = Verdict::kWrong,
                            .found = "the tier is not open",
                            .change = "free space above --ssd-floor, or see to the disk",
                            .worth = 94});
  if_counted("ssd.store_missing", {.name = "ssd",
                                   .verdict = Verdict::kWrong,
                                   .found = "the directory lost the store that it held",
                                   .change = "mount its disk, then restart prefixd",
                                   .worth = 96});
  if (CounterValue(stats, "spaces.refused") > 0) {
    findings.push_back({.name = "models",
                        .verdict = Verdict::kBetter,
                        .found = "some worker serves a model without sharing its cache",
                        .change = "prefixctl sessions says which, and why",
                        .worth = 60});
  }
  if (!stats.arena().shared()) {
    findings.push_back({.name = "arena",
                        .verdict = Verdict::kBetter,
                        .found = "private memory: pages are copied, kill -9 loses them",
                        .change = "give its tmpfs room, or name a file on another one (--arena); "
                                  "prefixd's log says what was wrong",
                        .worth = 85});
  }
  return findings;
}

// Which libraries and engines workers are built of.
std::vector<Finding> ExamineWorkers(const DaemonView& daemon) {
  if (!daemon.sessions.ok() || !daemon.stats.ok()) return {};
  std::map<std::string, uint64_t> workers;
  bool others = false;
  for (const v1::ListSessionsReply::Session& session : daemon.sessions->sessions()) {
    if (!session.attached() || session.library().empty()) continue;
    ++workers[PrintableText(session.library())];
    const std::string same = absl::StrCat("/", daemon.stats->version());
    const std::string library = session.library().substr(0, session.library().find(' '));
    others = others || !library.ends_with(same);
  }
  if (workers.empty()) return {};
  std::vector<std::string> seen;
  for (const auto& [library, count] : workers) seen.push_back(absl::StrCat(count, " of ", library));
  Finding finding{.name = "workers", .found = absl::StrJoin(seen, ", ")};
  if (others) {
    finding.verdict = Verdict::kBetter;
    finding.change = absl::StrCat("prefixd is ", PrintableText(daemon.stats->version()),
                                  ": install the same client library, and restart the workers");
    finding.worth = 25;
  }
  return {finding};
}

const char* Word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWrong:
      return "WRONG";
    case Verdict::kBetter:
      return "better";
    case Verdict::kUnknown:
      return "?";
    case Verdict::kFine:
      break;
  }
  return "fine";
}

// In which order verdicts are shown.
int Rank(const Finding& finding) {
  if (finding.verdict == Verdict::kWrong) return 0;
  return finding.change.empty() ? 2 : 1;
}

}  // namespace

std::vector<Finding> Examine(const Host& host, const DaemonView& daemon, bool disk) {
  std::vector<Finding> findings = {Reached(host, daemon)};
  if (daemon.stats.ok() && !TellsSums(*daemon.stats)) {
    findings.push_back({.name = "budgets, settings",
                        .verdict = Verdict::kUnknown,
                        .found = "not told to a caller of one tenant",
                        .change = "run it on prefixd's host, on its admin socket",
                        .worth = 99});
    return findings;
  }
  const Wanted wanted = WantedOf(host, daemon);
  const auto add = [&](std::vector<Finding> more) {
    std::ranges::move(more, std::back_inserter(findings));
  };
  if (daemon.stats.ok()) add(ExamineDaemon(*daemon.stats));
  add(ExamineWorkers(daemon));
  add(ExamineSocket(host, wanted));
  add(ExamineMemory(host, wanted));
  add(ExamineDisk(host, wanted));
  if (disk) add(ExamineDiskSpeed(host, wanted));
  add(ExamineSystem(host, wanted));
  std::ranges::stable_sort(findings, [](const Finding& a, const Finding& b) {
    return Rank(a) != Rank(b) ? Rank(a) < Rank(b) : a.worth > b.worth;
  });
  return findings;
}

bool AnyWrong(const std::vector<Finding>& findings) {
  return std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.verdict == Verdict::kWrong; });
}

std::string DoctorView(const std::vector<Finding>& findings) {
  Table table({{""}, {""}, {""}});
  for (const Finding& finding : findings) {
    table.AddRow({Word(finding.verdict), finding.name, finding.found});
    if (!finding.change.empty()) table.AddRow({"", "", "-> " + finding.change});
  }
  const auto changes = std::ranges::count_if(
      findings, [](const Finding& finding) { return !finding.change.empty(); });
  return absl::StrCat(table.Text(), "\n",
                      changes == 0 ? "nothing to change"
                                   : absl::StrCat(Plural(static_cast<uint64_t>(changes), "change"),
                                                  ", what is worth most first"),
                      "\n");
}

std::string DoctorJson(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"name", finding.name},
                    {"verdict", finding.verdict == Verdict::kWrong     ? "wrong"
                                : finding.verdict == Verdict::kUnknown ? "unknown"
                                                                       : Word(finding.verdict)},
                    {"found", finding.found},
                    {"change", finding.change},
                    {"worth", finding.worth}});
  }
  const nlohmann::ordered_json json = {{"findings", list}, {"wrong", AnyWrong(findings)}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace prefixd::cli
