// share: the figures that issue "zero copies, survives kill -9" promises, one file a family. Each
// starts the daemon that it needs, verifies bytes first, then times, and judges.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/daemon_process.h"
#include "bench/reference_loops.h"

namespace prefixd::bench {

void ShareAcquire(Bench& bench);
void ShareMatch(Bench& bench);
void ShareRead(Bench& bench);
void ShareGather(Bench& bench);
void SharePython(Bench& bench);
void ShareStreams(Bench& bench, SocketPeer* socket);
void ShareFairness(Bench& bench);
void ShareCrash(Bench& bench);
void ShareRestarts(Bench& bench);

// --- what they share ---

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

// A folder on a tmpfs for arena files, removed with this.
class ArenaFolder {
 public:
  ArenaFolder();
  ~ArenaFolder();
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // 0 without a tmpfs.
  uint64_t free_bytes() const;

 private:
  std::string path_;
};

// nullptr, and a failed check, when it does not come up. No SSD tier: nothing but RAM is measured.
struct SharedDaemon {
  ArenaFolder folder;
  DaemonProcess::Options options;
  std::unique_ptr<DaemonProcess> process;
};
std::unique_ptr<SharedDaemon> StartSharedDaemon(Bench& bench, const std::string& name,
                                                uint64_t ram_bytes);

// What of `wanted` bytes this machine has room for: a third of its free memory at most.
uint64_t FittingBytes(Bench& bench, uint64_t wanted);

// Latencies of calls that take turns. Each call returns its time in us, below 0 when it failed.
struct Turns {
  std::vector<std::vector<double>> us;  // one list a call
  bool good = true;
  double p50(size_t call) const;
  double p99(size_t call) const;
};
Turns TakeTurns(uint64_t rounds, const std::vector<std::function<double()>>& calls);

// Judges p50 against p50.
struct LatencyTarget {
  std::string name;
  size_t ours = 0;
  size_t reference = 0;
  std::string reference_name;
  double at_most = 0;
};
void JudgeLatency(Bench& bench, const Turns& turns, const LatencyTarget& target);

double SpreadPercent(const std::vector<double>& samples);

}  // namespace prefixd::bench
