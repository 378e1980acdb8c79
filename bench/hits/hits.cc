// hits: how many hits a second worker processes get from one prefixd, E3 of "sixteen cores as well
// as two". Each process acquires one resident prefix and releases it, without a pause: one process
// alone, then all of them, then all of them while they store as well; and by gRPC, to compare.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "bench/common/machine.h"
#include "bench/common/partner.h"
#include "bench/common/patience.h"
#include "bench/common/reference_loops.h"
#include "bench/common/shared_daemon.h"
#include "bench/common/timing.h"
#include "bench/common/workloads.h"
#include "bench/hits/worker.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kSeed = 1;
constexpr uint32_t kShort = 2'048, kLong = 32'768;
constexpr uint64_t kCores = 16, kWorkers = 14;  // of the targets

// A load is one way to ask. Its targets are those of kWorkers workers on kCores cores.
struct Load {
  std::string name;
  uint32_t tokens = 0;
  bool stores = false;
  double hits_per_s = 0;    // at least; 0: no target
  double p99_of_alone = 0;  // at most; 0: no target
  double p99_us = 0;        // at most; 0: no target
  bool by_grpc = false;     // else by direct calls
};

// What the workers that asked at the same time saw, taken together.
struct Seen {
  uint64_t hits = 0;
  double hits_per_s = 0, stores_per_s = 0;
  double p50_us = 0, p99_us = 0, longest_us = 0;
  double prefixd_cores = 0;
};

class Workers {
 public:
  Workers(Bench& bench, SharedDaemon& daemon) : bench_(bench), daemon_(daemon) {}

  bool Start(uint64_t count, uint32_t tokens) {
    for (uint64_t i = 0; i < count; ++i) {
      auto worker = Partner::Start("hits-worker", {{"address", daemon_.process->address()},
                                                   {"number", i},
                                                   {"seed", kSeed},
                                                   {"tokens", tokens}});
      if (!bench_.Check(worker.ok(), worker.status().ToString())) return false;
      workers_.push_back(*std::move(worker));
    }
    return std::all_of(workers_.begin(), workers_.end(),
                       [this](const auto& worker) { return !Hear(*worker).is_null(); });
  }

  // Lets the first `count` workers ask for `us`. Returns false if one of them failed.
  bool Ask(uint64_t count, const Load& load, double us, Seen* seen) {
    const double start = NowMicros(), cpu = CpuMicros(daemon_.process->pid());
    const nlohmann::json order{
        {"tokens", load.tokens}, {"us", us}, {"stores", load.stores}, {"by_grpc", load.by_grpc}};
    for (uint64_t i = 0; i < count; ++i) workers_[i]->Say(order.dump());
    std::vector<double> hits_us;
    for (uint64_t i = 0; i < count; ++i) {
      const nlohmann::json answer = Hear(*workers_[i]);
      if (answer.is_null()) return false;
      const std::vector<double> own = answer.at("hits_us");
      seen->hits += own.size();
      const double seconds = answer.at("us").get<double>() / 1e6;
      seen->hits_per_s += static_cast<double>(own.size()) / seconds;
      seen->stores_per_s += answer.at("stored").get<double>() / seconds;
      hits_us.insert(hits_us.end(), own.begin(), own.end());
    }
    seen->prefixd_cores = (CpuMicros(daemon_.process->pid()) - cpu) / (NowMicros() - start);
    seen->p50_us = Quantile(hits_us, 0.5);
    seen->longest_us = Quantile(hits_us, 1);
    seen->p99_us = Quantile(std::move(hits_us), 0.99);
    return true;
  }

 private:
  nlohmann::json Hear(Partner& worker) { return GoodAnswer(bench_, worker.Hear(kPatience)); }

  Bench& bench_;
  SharedDaemon& daemon_;
  std::vector<std::unique_ptr<Partner>> workers_;
};

void Report(Bench& bench, const Load& load, uint64_t workers, const Seen& seen) {
  bench.Add({absl::StrCat(load.name, ", ", workers, workers == 1 ? " worker" : " workers"),
             {{"hits a second", seen.hits_per_s},
              {"stores a second", seen.stores_per_s},
              {"p50_us", seen.p50_us},
              {"p99_us", seen.p99_us},
              {"longest_us", seen.longest_us},
              {"cores of prefixd", seen.prefixd_cores}}});
}

void JudgeAll(Bench& bench, const Load& load, uint64_t workers, const Seen& alone,
              const Seen& together) {
  if (load.hits_per_s == 0) return;
  const std::string name = absl::StrCat(load.name, ", ", workers, " workers");
  bench.Judge({.name = name + ", hits a second",
               .ours = absl::StrFormat("%.0f a second", together.hits_per_s),
               .reference = absl::StrFormat("one alone %.0f", alone.hits_per_s),
               .measure = "hits",
               .seen = together.hits_per_s,
               .at_most = false,
               .limit = load.hits_per_s,
               .unit = " a second",
               .runs = together.hits});
  Target p99{.name = name + ", p99",
             .ours = "p99 " + MicrosText(together.p99_us),
             .reference = "one alone p99 " + MicrosText(alone.p99_us),
             .seen = together.p99_us / alone.p99_us,
             .limit = load.p99_of_alone,
             .runs = together.hits};
  if (load.p99_of_alone > 0) bench.Judge(p99);
  p99.measure = "p99";
  p99.seen = together.p99_us;
  p99.limit = load.p99_us;
  p99.unit = " us";
  if (load.p99_us > 0) bench.Judge(p99);
}

bool StorePrefix(Bench& bench, const std::string& address, uint32_t tokens) {
  Client client({.address = address, .name = "hits-writer", .connect_deadline = kPatience});
  Result<Space> space = client.OpenSpace(SpecOf(HitsGeometry()));
  if (!bench.Check(space.ok(), space.status.message)) return false;
  if (!bench.Check(client.WaitAttached(kPatience), "hits: the writer does not attach"))
    return false;
  const Status stored = StoreRows(space.value(), TokensOf({.seed = kSeed, .tokens = tokens}));
  return bench.Check(stored.ok(), stored.message);
}

}  // namespace

void RunHits(Bench& bench) {
  const uint64_t cores = ThisMachine().cores;
  const uint64_t fitting = cores > 2 ? cores - 2 : 2;
  const uint64_t count =
      bench.workers() > 0 ? bench.workers() : bench.Parameter("workers", 2, fitting);
  const double us = static_cast<double>(bench.Parameter("run_ms", 100, 3'000, 10'000)) * 1e3;
  const auto long_tokens = static_cast<uint32_t>(bench.Parameter("long_tokens", 4'096, kLong));
  const auto daemon = StartSharedDaemon(bench, "hits", (bench.smoke() ? 256 : 1'024) * kMiB);
  if (daemon == nullptr || !StorePrefix(bench, daemon->process->address(), long_tokens)) return;
  Workers workers(bench, *daemon);
  if (!workers.Start(count, long_tokens)) return;
  const bool judged = cores >= kCores && count >= kWorkers;
  if (!judged) {
    bench.Note(absl::StrCat("the targets are those of ", kWorkers, " workers on ", kCores,
                            " cores; here are ", count, " on ", cores));
  }
  const std::string long_name = absl::StrCat("hits of ", long_tokens, " tokens");
  const Load loads[] = {
      {"hits of 2048 tokens", kShort, false, 80'000, 2, 0},
      {"hits of 2048 tokens, a store after 8", kShort, true, 20'000, 0, 0},
      {long_name, long_tokens, false, 15'000, 0, 2'000},
      {"hits of 2048 tokens by gRPC", kShort, false, 0, 0, 0, true},
      {long_name + " by gRPC", long_tokens, false, 0, 0, 0, true},
  };
  for (const Load& load : loads) {
    Seen alone, together;
    if (!workers.Ask(1, load, us, &alone)) return;
    Report(bench, load, 1, alone);
    if (!workers.Ask(count, load, us, &together)) return;
    Report(bench, load, count, together);
    if (judged) JudgeAll(bench, load, count, alone, together);
  }
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
