#include "bench/ssd/ssd.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status.h"
#include "bench/common/families.h"
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

Watch::Watch(std::function<void()> sample)
    : thread_([this, sample = std::move(sample)] {
        while (!over_) {
          sample();
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
      }) {}

void Watch::Stop() {
  over_ = true;
  if (thread_.joinable()) thread_.join();
}

void JudgeDisk(Bench& bench, const DiskTarget& target, const MovedRounds& rounds) {
  JudgeRate(bench, rounds, {target.name, target.at_least, target.reference});
  const uint64_t count = rounds.samples[0].size();
  bench.Judge({.name = target.name + ", CPU of the daemon",
               .ours = BytesText(static_cast<double>(rounds.bytes[0] * count)),
               .reference =
                   absl::StrFormat("%s %.2f CPU s/GB", target.reference, rounds.CpuSecondsPerGb(1)),
               .measure = "cost",
               .seen = rounds.CpuSecondsPerGb(0),
               .limit = target.cpu_at_most,
               .unit = " CPU s/GB",
               .runs = count,
               .spread_percent = SpreadPercent(rounds.cpu_us[0])});
}

void RunSsd(Bench& bench) {
  RunFamilies(bench, {{"spill", [&] { SsdSpill(bench); }},
                      {"restore", [&] { SsdRestore(bench); }},
                      {"churn", [&] { SsdChurn(bench); }},
                      {"restart", [&] { SsdRestart(bench); }},
                      {"budget", [&] { SsdBudget(bench); }}});
}

}  // namespace prefixd::bench
