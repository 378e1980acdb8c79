// ssd: the figures that issue "the SSD tier and eviction" promises, one file a family. Each starts
// the daemon that it needs, verifies bytes first, then times, and judges.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/common/bench.h"
#include "bench/common/daemon_stats.h"
#include "bench/common/page_source.h"
#include "bench/common/raw_session.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/shared_daemon.h"
#include "bench/common/timing.h"

namespace prefixd::bench {

void SsdSpill(Bench& bench);    // sustained, paced, amplification of insertion
void SsdRestore(Bench& bench);  // rate, cost, first layer group
void SsdChurn(Bench& bench);    // several times the capacity, random pages wanted again
void SsdRestart(Bench& bench);
void SsdBudget(Bench& bench);  // footprint under churn, very long sequences

// --- what they share ---

// One layer group, pages of 0.95 MiB; and four of them.
const Geometry& OneGroup();
const Geometry& FourGroups();

// A daemon with a shared arena and an SSD tier, a session of it, and its pages.
class SsdDaemon {
 public:
  struct Options {
    std::string name;
    uint64_t ram_bytes = 0, ssd_bytes = 0;
    Geometry geometry = OneGroup();
    uint64_t staging_bytes = 64 * kMiB;
    std::string ssd_floor = "1GiB";  // of free space
    std::string log_level = "warning";
    std::vector<std::string> flags = {};
  };
  // nullptr, and a failed check, when it does not come up.
  static std::unique_ptr<SsdDaemon> Start(Bench& bench, const Options& options);

  absl::Status Stop() { return process_->Stop(); }

  const PageSource& source() const { return source_; }
  RawSession& session() { return *session_; }
  DaemonStats& stats() { return *stats_; }
  pid_t pid() const { return process_->pid(); }
  std::string address() const { return process_->address(); }
  const std::string& arena() const { return options_.arena; }
  const std::string& directory() const { return options_.directory; }
  std::string ssd_directory() const { return options_.directory + "/ssd"; }
  RawSequence Sequence(uint64_t number, uint32_t tokens) const {
    return MakeSequence(space_, number, tokens);
  }
  // As many whole blocks as make up about `bytes`.
  uint32_t TokensIn(uint64_t bytes) const {
    return static_cast<uint32_t>(bytes / source_.block_bytes()) * PageSource::kBlockTokens;
  }
  absl::Status Store(const RawSequence& sequence, Moved* moved = nullptr) {
    return StoreStaged(*session_, source_, sequence, moved);
  }
  absl::StatusOr<uint64_t> Counter(const std::string& name);

 private:
  explicit SsdDaemon(const Options& options)
      : source_(options.geometry), staging_bytes_(options.staging_bytes) {}
  absl::Status Begin();

  ArenaFolder folder_;
  DaemonProcess::Options options_;
  std::unique_ptr<DaemonProcess> process_;
  const PageSource source_;
  const uint64_t staging_bytes_;
  std::unique_ptr<DaemonStats> stats_;
  std::unique_ptr<RawSession> session_;
  uint64_t space_ = 0;
};

// Calls something 20 times a second until it is stopped.
class Watch {
 public:
  explicit Watch(std::function<void()> sample);
  ~Watch() { Stop(); }
  void Stop();

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Judges the median of the rounds' ratios, and what our side costs.
struct DiskTarget {
  std::string name, reference;
  double at_least = 0;     // of the reference's rate
  double cpu_at_most = 0;  // s/GB
};
void JudgeDisk(Bench& bench, const DiskTarget& target, const MovedRounds& rounds);

}  // namespace prefixd::bench
