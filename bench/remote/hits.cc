// R4: what a local hit and a miss cost where the shared tier is off, on, and stopped.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/bytes.h"
#include "base/status.h"
#include "bench/common/own_cache.h"
#include "bench/common/stored_sequences.h"
#include "bench/common/timing.h"
#include "bench/remote/redis_process.h"
#include "bench/remote/remote.h"
#include "bench/remote/small_host.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kHitTokens = 2'048;
constexpr uint64_t kHit = 1;  // the seed of the sequence that all have

// Asks as the daemon does: here first; what falls short is brought, then acquired.
absl::StatusOr<bool> AskAsDaemon(OwnCache& own, const cache::Request& request) {
  PREFIXD_ASSIGN_OR_RETURN(std::optional<cache::Acquired> here,
                           own.cache().AcquireHere(own.session(), request, OwnCache::Soon()));
  const bool asked = !here.has_value();
  if (asked) {
    PREFIXD_RETURN_IF_ERROR(own.cache().Bring(own.session(), request).status());
    PREFIXD_ASSIGN_OR_RETURN(here, own.cache().Acquire(own.session(), request, OwnCache::Soon()));
  }
  if (here->lease) {
    PREFIXD_RETURN_IF_ERROR(own.cache().Release(own.session(), {.lease = here->lease}));
  }
  return asked;
}

// Three hosts with one sequence: without a shared tier, with one, and with one whose server is
// stopped.
class Hosts {
 public:
  static constexpr size_t kCount = 3;
  static constexpr const char* kNames[kCount] = {"off", "on", "stopped"};

  absl::Status Open(const std::string& directory) {
    for (size_t i = 0; i < kCount; ++i) {
      std::shared_ptr<remote::RedisStore> store;
      if (i > 0) {
        PREFIXD_ASSIGN_OR_RETURN(servers_[i],
                                 RedisProcess::Start(absl::StrCat(directory, "/", kNames[i])));
        PREFIXD_ASSIGN_OR_RETURN(store, servers_[i]->OpenStore());
      }
      PREFIXD_ASSIGN_OR_RETURN(hosts_[i], OpenSmallHost({.store = store}));
      PREFIXD_RETURN_IF_ERROR(hosts_[i]->Store(TokensOf({.seed = kHit, .tokens = kHitTokens})));
      if (i > 0 && !hosts_[i]->cache().WaitRemote(OwnCache::Soon())) {
        return absl::DeadlineExceededError("what was stored was not written");
      }
    }
    servers_[2]->Pause();
    return absl::OkStatus();
  }
  OwnCache& host(size_t i) { return *hosts_[i]; }

 private:
  std::unique_ptr<RedisProcess> servers_[kCount];
  std::unique_ptr<OwnCache> hosts_[kCount];
};

void TimeHits(Bench& bench) {
  const uint64_t rounds = bench.Parameter("hit_rounds", 1, 9, 15);
  const uint64_t hits = bench.Parameter("hits_a_round", 20, 1'000, 4'000);
  Hosts hosts;
  const absl::Status opened = hosts.Open(bench.directory());
  if (!bench.Check(opened.ok(), opened.ToString())) return;
  // Meanwhile each host is asked for what nobody has.
  std::atomic<bool> over{false}, good{true};
  std::thread misses([&] {
    for (uint64_t seed = 1'000; !over; ++seed) {
      const std::vector<block::Token> tokens = TokensOf({.seed = seed, .tokens = kHitTokens});
      for (size_t i = 0; i < Hosts::kCount; ++i) {
        if (!AskAsDaemon(hosts.host(i), RequestOf(hosts.host(i), tokens)).ok()) good = false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  std::vector<cache::Request> requests;
  for (size_t i = 0; i < Hosts::kCount; ++i) {
    requests.push_back(RequestOf(hosts.host(i), TokensOf({.seed = kHit, .tokens = kHitTokens})));
  }
  std::vector<double> all[Hosts::kCount], p99[Hosts::kCount];
  for (uint64_t round = 0; round < rounds; ++round) {
    std::vector<double> us[Hosts::kCount];
    for (uint64_t hit = 0; hit < hits; ++hit) {
      for (size_t i = 0; i < Hosts::kCount; ++i) {
        const size_t host = (i + hit) % Hosts::kCount;
        const double start = NowMicros();
        const auto asked = AskAsDaemon(hosts.host(host), requests[host]);
        us[host].push_back(NowMicros() - start);
        if (!asked.ok() || *asked) good = false;
      }
    }
    for (size_t i = 0; i < Hosts::kCount; ++i) {
      all[i].insert(all[i].end(), us[i].begin(), us[i].end());
      p99[i].push_back(Quantile(us[i], 0.99));
    }
  }
  over = true;
  misses.join();
  bench.Check(good, "a hit was none, or asked the shared tier");
  for (size_t i = 0; i < Hosts::kCount; ++i) {
    bench.Add({absl::StrCat("local hit of ", kHitTokens, " tokens, shared tier ", Hosts::kNames[i]),
               {{"p50_us", Quantile(all[i], 0.5)}, {"p99_us", Quantile(all[i], 0.99)}}});
    if (i == 0) continue;
    std::vector<double> ratios;
    for (uint64_t round = 0; round < rounds; ++round)
      ratios.push_back(p99[i][round] / p99[0][round]);
    bench.Judge({.name = absl::StrCat("R4 local hit, shared tier ", Hosts::kNames[i]),
                 .ours = "p99 " + MicrosText(Quantile(all[i], 0.99)),
                 .reference = "off p99 " + MicrosText(Quantile(all[0], 0.99)),
                 .seen = Quantile(ratios, 0.5),
                 .limit = 1.1,
                 .runs = rounds,
                 .spread_percent = SpreadPercent(ratios)});
  }
}

// Misses one after the other from the moment on at which the server stops.
void TimeMisses(Bench& bench, uint32_t tokens, uint64_t misses_after) {
  const auto server = RedisProcess::Start(absl::StrCat(bench.directory(), "/misses-", tokens));
  if (!bench.Check(server.ok(), server.status().ToString())) return;
  const auto store = (*server)->OpenStore();
  if (!bench.Check(store.ok(), store.status().ToString())) return;
  const auto own = OpenSmallHost({.store = *store});
  if (!bench.Check(own.ok(), own.status().ToString())) return;
  uint64_t seed = 1;
  std::vector<double> answered, before, after, asked_after;
  const auto miss = [&](std::vector<double>* us) {
    const auto request = RequestOf(**own, TokensOf({.seed = ++seed, .tokens = tokens}));
    const double start = NowMicros();
    const auto asked = AskAsDaemon(**own, request);
    us->push_back(NowMicros() - start);
    return bench.Check(asked.ok(), asked.status().ToString()) && *asked;
  };
  const auto is_open = [&] {
    const remote::RemoteStatus status = (*store)->Status();
    return std::ranges::any_of(status.nodes, &remote::NodeStatus::open);
  };
  for (int i = 0; i < 50; ++i) miss(&answered);
  (*server)->Pause();
  const double give_up = NowMicros() + 10e6;
  while (!is_open() && NowMicros() < give_up) {
    std::vector<double> us;
    if (miss(&us)) before.push_back(us[0]);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!bench.Check(is_open() && !before.empty(), "the breaker did not open in 10 s")) return;
  // For as long as it takes that some of them ask the store, which is given up for 100 ms each
  // time.
  for (uint64_t i = 0; i < misses_after || asked_after.size() < 5; ++i) {
    if (miss(&after)) asked_after.push_back(after.back());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (NowMicros() > give_up + 20e6) break;
  }
  if (!bench.Check(!asked_after.empty(), "nobody asked after the breaker had opened")) return;
  const std::string name = absl::StrCat("miss of ", tokens, " tokens");
  const auto largest = [](const std::vector<double>& us) { return Quantile(us, 1); };
  bench.Add({name,
             {{"server_answers_p50_us", Quantile(answered, 0.5)},
              {"stopped_p50_us", Quantile(before, 0.5)},
              {"stopped_max_us", largest(before)},
              {"open_p50_us", Quantile(after, 0.5)},
              {"open_p99_us", Quantile(after, 0.99)},
              {"open_and_asked_p50_us", Quantile(asked_after, 0.5)},
              {"open_max_us", largest(after)}}});
  bench.Judge({.name = "R4 " + name + " until the breaker opens",
               .ours = absl::StrCat(before.size(), " that asked"),
               .measure = "longest",
               .seen = largest(before) / 1e3,
               .limit = 20,
               .unit = " ms",
               .runs = before.size()});
  bench.Judge({.name = "R4 " + name + " after it opened, that asked the store",
               .ours = "all p50 " + MicrosText(Quantile(after, 0.5)),
               .measure = "p50",
               .seen = Quantile(asked_after, 0.5) / 1e3,
               .limit = 0.1,
               .unit = " ms",
               .runs = asked_after.size(),
               .spread_percent = SpreadPercent(asked_after)});
}

}  // namespace

void RemoteHits(Bench& bench) {
  TimeHits(bench);
  const uint64_t misses = bench.Parameter("misses_after", 20, 500, 1'000);
  TimeMisses(bench, kHitTokens, misses);
  if (!bench.smoke()) TimeMisses(bench, 32'768, misses);
}

}  // namespace prefixd::bench
