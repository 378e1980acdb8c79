#include "bench/share.h"

#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "bench/timing.h"
#include "bench/workloads.h"

namespace prefixd::bench {
namespace {

uint64_t AvailableMemory() {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return std::stoull(line.substr(13)) * 1024;
  }
  return 0;
}

}  // namespace

ArenaFolder::ArenaFolder() : path_("/dev/shm/prefixd-bench-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) path_.clear();
}

ArenaFolder::~ArenaFolder() {
  std::error_code ignored;  // what is left behind goes with the next boot
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

uint64_t ArenaFolder::free_bytes() const {
  struct statfs room {};
  if (path_.empty() || ::statfs(path_.c_str(), &room) != 0) return 0;
  return room.f_bavail * static_cast<uint64_t>(room.f_bsize);
}

std::unique_ptr<SharedDaemon> StartSharedDaemon(Bench& bench, const std::string& name,
                                                uint64_t ram_bytes) {
  auto daemon = std::make_unique<SharedDaemon>();
  if (!bench.Check(daemon->folder.free_bytes() >= ram_bytes,
                   absl::StrCat(name, ": /dev/shm has no room for ", ram_bytes, " bytes"))) {
    return nullptr;
  }
  const std::string directory = bench.directory() + "/" + name;
  std::filesystem::create_directories(directory);
  daemon->options = {.directory = directory,
                     .ram = std::to_string(ram_bytes),
                     .ssd = "off",
                     .arena = daemon->folder.file("arena"),
                     .flags = {"--log-level", "warning"}};
  auto process = DaemonProcess::Start(daemon->options);
  if (!bench.Check(process.ok(), process.status().ToString())) return nullptr;
  daemon->process = *std::move(process);
  return daemon;
}

uint64_t FittingBytes(Bench& bench, uint64_t wanted) {
  const uint64_t room = AvailableMemory() / 3 / kMiB * kMiB;
  if (wanted <= room) return wanted;
  bench.Note(absl::StrCat("little memory: ", BytesText(static_cast<double>(room)), " instead of ",
                          BytesText(static_cast<double>(wanted))));
  return room;
}

double Turns::p50(size_t call) const { return Quantile(us[call], 0.5); }
double Turns::p99(size_t call) const { return Quantile(us[call], 0.99); }

Turns TakeTurns(uint64_t rounds, const std::vector<std::function<double()>>& calls) {
  Turns turns;
  turns.us.resize(calls.size());
  constexpr uint64_t kWarmUp = 3;
  for (uint64_t round = 0; round < rounds + kWarmUp && turns.good; ++round) {
    for (size_t call = 0; call < calls.size(); ++call) {
      const double us = calls[call]();
      turns.good = turns.good && us >= 0;
      if (round >= kWarmUp) turns.us[call].push_back(us);
    }
  }
  return turns;
}

double SpreadPercent(const std::vector<double>& samples) {
  return Summarize(samples).spread_percent;
}

void JudgeLatency(Bench& bench, const Turns& turns, const LatencyTarget& target) {
  const double ours = turns.p50(target.ours), reference = turns.p50(target.reference);
  bench.Judge({.name = target.name,
               .ours = "p50 " + MicrosText(ours),
               .reference = target.reference_name + " p50 " + MicrosText(reference),
               .seen = ours / reference,
               .limit = target.at_most,
               .runs = turns.us[target.ours].size(),
               .spread_percent = SpreadPercent(turns.us[target.ours])});
}

void RunShare(Bench& bench) {
  // First of all: it forks.
  const std::unique_ptr<SocketPeer> socket = SocketPeer::Start(256 * kMiB);
  if (!bench.Check(socket != nullptr, "no process for the raw socket")) return;
  const std::pair<const char*, std::function<void()>> families[] = {
      {"acquire", [&] { ShareAcquire(bench); }},
      {"match", [&] { ShareMatch(bench); }},
      {"read", [&] { ShareRead(bench); }},
      {"gather", [&] { ShareGather(bench); }},
      {"python", [&] { SharePython(bench); }},
      {"streams", [&] { ShareStreams(bench, socket.get()); }},
      {"fairness", [&] { ShareFairness(bench); }},
      {"crash", [&] { ShareCrash(bench); }},
      {"restarts", [&] { ShareRestarts(bench); }}};
  for (const auto& [name, run] : families) {
    if (bench.Wants(name)) run();
  }
}

}  // namespace prefixd::bench
