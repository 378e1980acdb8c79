#include "bench/ssd/ssd.h"

#include <cstdio>
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/timing.h"
#include "bench/common/workloads.h"

namespace prefixd::bench {

const Geometry& OneGroup() { return SharedGeometry(); }

const Geometry& FourGroups() {
  static const Geometry geometry{
      .model = "28 layers of 8 heads", .layers = 28, .kv_heads = 8, .dim = 128};
  return geometry;
}

std::unique_ptr<SsdDaemon> SsdDaemon::Start(Bench& bench, const Options& options) {
  std::unique_ptr<SsdDaemon> daemon(new SsdDaemon(options));
  const std::string directory = bench.directory() + "/" + options.name;
  std::filesystem::create_directories(directory);
  daemon->options_ = {.directory = directory,
                      .ram = std::to_string(options.ram_bytes),
                      .ssd = std::to_string(options.ssd_bytes),
                      .arena = daemon->folder_.file("arena"),
                      // What the disk and the code can do, not what a workload is worth.
                      .ssd_floor = options.ssd_floor,
                      .flags = {"--log-level", options.log_level, "--ssd-write-share", "off"}};
  daemon->options_.flags.insert(daemon->options_.flags.end(), options.flags.begin(),
                                options.flags.end());
  const absl::Status begun = daemon->Begin();
  if (!bench.Check(begun.ok(), absl::StrCat(options.name, ": ", begun.ToString()))) return nullptr;
  return daemon;
}

absl::Status SsdDaemon::Begin() {
  PREFIXD_ASSIGN_OR_RETURN(process_, DaemonProcess::Start(options_));
  stats_ = std::make_unique<DaemonStats>(process_->address());
  PREFIXD_ASSIGN_OR_RETURN(session_, RawSession::Open({.address = process_->address(),
                                                       .name = "ssd",
                                                       .staging_bytes = staging_bytes_}));
  PREFIXD_ASSIGN_OR_RETURN(space_, session_->OpenSpace(source_.identity()));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SsdDaemon::Counter(const std::string& name) {
  PREFIXD_ASSIGN_OR_RETURN(const v1::GetStatsReply stats, stats_->Get());
  return CounterOf(stats, name);
}

std::string DiskRounds::RateText() const { return bench::RateText(bytes, Quantile(us, 0.5)); }

double DiskRounds::CpuSecondsPerGb() const { return Quantile(cpu_us, 0.5) * 1e3 / bytes; }

void JudgeDisk(Bench& bench, const DiskTarget& target, const DiskRounds& ours,
               const DiskRounds& raw) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.us.size(); ++i) {
    ratios.push_back(ours.bytes / ours.us[i] / (raw.bytes / raw.us[i]));
  }
  bench.Judge({.name = target.name,
               .ours = ours.RateText(),
               .reference = target.reference + " " + raw.RateText(),
               .seen = Quantile(ratios, 0.5),
               .at_most = false,
               .limit = target.at_least,
               .runs = ratios.size(),
               .spread_percent = SpreadPercent(ratios)});
  char text[64];
  std::snprintf(text, sizeof(text), "%s %.2f CPU s/GB", target.reference.c_str(),
                raw.CpuSecondsPerGb());
  bench.Judge({.name = target.name + ", CPU of the daemon",
               .ours = BytesText(ours.total_bytes()),
               .reference = text,
               .measure = "cost",
               .seen = ours.CpuSecondsPerGb(),
               .limit = target.cpu_at_most,
               .unit = " CPU s/GB",
               .runs = ratios.size(),
               .spread_percent = SpreadPercent(ours.cpu_us)});
}

void RunSsd(Bench& bench) {
  const std::pair<const char*, void (*)(Bench&)> families[] = {{"spill", SsdSpill},
                                                               {"restore", SsdRestore},
                                                               {"churn", SsdChurn},
                                                               {"restart", SsdRestart},
                                                               {"budget", SsdBudget}};
  for (const auto& [name, run] : families) {
    if (bench.Wants(name)) run(bench);
  }
}

}  // namespace prefixd::bench
