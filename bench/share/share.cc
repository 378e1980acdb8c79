#include "bench/share/share.h"

#include <functional>
#include <utility>

#include "bench/common/families.h"
#include "bench/common/timing.h"
#include "bench/common/workloads.h"

namespace prefixd::bench {

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
  RunFamilies(bench, {{"acquire", [&] { ShareAcquire(bench); }},
                      {"match", [&] { ShareMatch(bench); }},
                      {"read", [&] { ShareRead(bench); }},
                      {"gather", [&] { ShareGather(bench); }},
                      {"python", [&] { SharePython(bench); }},
                      {"streams", [&] { ShareStreams(bench, socket.get()); }},
                      {"tls", [&] { ShareTls(bench); }},
                      {"fairness", [&] { ShareFairness(bench); }},
                      {"crash", [&] { ShareCrash(bench); }}});
}

}  // namespace prefixd::bench
