// share: the figures that issue "zero copies, survives kill -9" promises, one file a family. Each
// starts the daemon that it needs, verifies bytes first, then times, and judges.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "bench/common/bench.h"
#include "bench/common/reference_loops.h"
#include "bench/common/shared_daemon.h"

namespace prefixd::bench {

void ShareAcquire(Bench& bench);
void ShareMatch(Bench& bench);
void ShareRead(Bench& bench);
void ShareGather(Bench& bench);
void SharePython(Bench& bench);
void ShareStreams(Bench& bench, SocketPeer* socket);
void ShareTls(Bench& bench);
void ShareFairness(Bench& bench);
void ShareCrash(Bench& bench);

// --- what they share ---

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

}  // namespace prefixd::bench
