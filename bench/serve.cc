// serve: workers with traffic on one daemon. First a new system prompt that many requests want at
// once and that is to be computed once; then conversations whose turns grow. Computing is played by
// waiting as long as prefill would take and writing the bytes that follow from the tokens.
#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/child_roles.h"
#include "bench/forked_sequences.h"
#include "bench/partner.h"
#include "bench/share.h"
#include "bench/timing.h"
#include "bench/workloads.h"

namespace prefixd::bench {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;

constexpr double kPrefillTokensPerSecond = 20'000;
constexpr uint32_t kPromptTokens = 2'048, kTailTokens = 96, kTurnTokens = 160;
constexpr uint32_t kApps = 4, kUsers = 24, kTurns = 6;
constexpr seconds kPatience{120};
const Geometry kGeometry{.model = "served", .layers = 4, .kv_heads = 4, .dim = 64};

struct Served {
  uint64_t requests = 0, requested_tokens = 0, cached_tokens = 0;
  uint64_t prompt_tokens_computed = 0;  // of the part that requests have in common
  uint64_t errors = 0, wrong = 0;
  std::string first_error = {};
  std::vector<double> first_byte_us = {};   // asking to the first cached byte readable
  std::vector<double> first_token_us = {};  // asking to everything computed
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Served, requests, requested_tokens, cached_tokens,
                                   prompt_tokens_computed, errors, wrong, first_error,
                                   first_byte_us, first_token_us)

void Add(const Served& from, Served* to) {
  to->requests += from.requests;
  to->requested_tokens += from.requested_tokens;
  to->cached_tokens += from.cached_tokens;
  to->prompt_tokens_computed += from.prompt_tokens_computed;
  to->errors += from.errors;
  to->wrong += from.wrong;
  if (to->first_error.empty()) to->first_error = from.first_error;
  to->first_byte_us.insert(to->first_byte_us.end(), from.first_byte_us.begin(),
                           from.first_byte_us.end());
  to->first_token_us.insert(to->first_token_us.end(), from.first_token_us.begin(),
                            from.first_token_us.end());
}

class ServeWorker {
 public:
  ServeWorker(const std::string& address, uint64_t seed)
      : random_(seed), client_({.address = address, .name = absl::StrCat("serve-", seed)}) {}

  bool Open() {
    if (!client_.WaitAttached(kPatience)) return false;
    Result<Space> space = client_.OpenSpace(SpecOf(kGeometry));
    if (space.ok()) space_ = std::move(space.value());
    return space.ok();
  }
  // `requests` at once, each a tail of its own behind the same prompt.
  Served Cold(uint32_t worker, uint32_t requests) {
    std::vector<Served> served(requests);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < requests; ++i) {
      threads.emplace_back([&, i] {
        served[i] = One({.family = 1'000,
                         .branch = worker * 1'000 + i,
                         .shared_tokens = kPromptTokens,
                         .tokens = kPromptTokens + kTailTokens});
      });
    }
    for (std::thread& thread : threads) thread.join();
    Served all;
    for (const Served& one : served) Add(one, &all);
    return all;
  }
  // Users pick up their conversations in random order.
  Served Traffic(uint64_t requests) {
    Served all;
    for (uint64_t i = 0; i < requests; ++i) {
      const auto user = static_cast<uint32_t>(std::min(random_() % kUsers, random_() % kUsers));
      const auto turn = static_cast<uint32_t>(random_() % kTurns);
      Add(One({.family = user % kApps,
               .branch = user,
               .shared_tokens = kPromptTokens,
               .tokens = kPromptTokens + kTailTokens + turn * kTurnTokens}),
          &all);
    }
    return all;
  }

 private:
  Served One(const ForkedName& name) {
    Served served{.requests = 1, .requested_tokens = name.tokens};
    const std::vector<uint32_t> tokens = TokensOf(name);
    const double start = NowMicros();
    Sequence sequence = space_.Begin(tokens, {.deadline = seconds(20),
                                              .load_deadline = seconds(20),
                                              .prefill_tokens_per_s = kPrefillTokensPerSecond,
                                              .wait_pending = seconds(10)});
    uint32_t cached = sequence.restorable_tokens();
    if (cached > 0) {
      sequence.Wait(0);
      served.first_byte_us.push_back(NowMicros() - start);
    }
    if (sequence.WaitAll() < cached) cached = sequence.Restart();
    const auto computing =
        microseconds(static_cast<int64_t>((name.tokens - cached) * 1e6 / kPrefillTokensPerSecond));
    std::this_thread::sleep_for(computing);
    if (!pattern_.Write(name, cached, &sequence).ok()) ++served.errors;
    served.first_token_us.push_back(NowMicros() - start);
    if (const auto stored = sequence.Commit({.sequence_end = true}); !stored.ok()) {
      ++served.errors;
      served.first_error = stored.status.message;
    }
    if (!pattern_.Matches(name, name.tokens, sequence)) ++served.wrong;
    served.cached_tokens = cached;
    served.prompt_tokens_computed = name.shared_tokens - std::min(cached, name.shared_tokens);
    sequence.Release({.used_tokens = cached,
                      .first_token = microseconds(static_cast<int64_t>(served.first_token_us[0])),
                      .prefill_tokens_per_s = kPrefillTokensPerSecond});
    return served;
  }

  std::mt19937_64 random_;
  const ForkedPattern pattern_{kGeometry};
  Client client_;
  Space space_;
};

// What all workers did on one order.
bool AskAll(Bench& bench, const std::vector<std::unique_ptr<Partner>>& workers,
            const std::string& order, Served* all) {
  for (const auto& worker : workers) worker->Say(order);
  for (const auto& worker : workers) {
    const auto answer = worker->Hear(kPatience);
    if (!bench.Check(answer.ok(), answer.status().ToString())) return false;
    Add(answer->get<Served>(), all);
  }
  return bench.Check(all->wrong == 0, "wrong bytes") &&
         bench.Check(all->errors == 0, all->first_error);
}

void Report(Bench& bench, const std::string& name, const Served& served, double us) {
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  Row row{name,
          {{"requests", number(served.requests)},
           {"hit_percent", 100 * number(served.cached_tokens) / number(served.requested_tokens)},
           {"tokens_per_s", number(served.requested_tokens) * 1e6 / us},
           {"first_token_p50_us", Quantile(served.first_token_us, 0.5)},
           {"first_token_p99_us", Quantile(served.first_token_us, 0.99)}}};
  if (!served.first_byte_us.empty()) {
    row.figures.push_back({"first_byte_p50_us", Quantile(served.first_byte_us, 0.5)});
    row.figures.push_back({"first_byte_p99_us", Quantile(served.first_byte_us, 0.99)});
  }
  bench.Add(std::move(row));
}

}  // namespace

int RunServeWorker(const nlohmann::json& plan) {
  const uint64_t number = plan.at("worker");
  ServeWorker worker(plan.at("address"), number + 1);
  if (!worker.Open()) return 1;
  TellParent(Served());
  for (std::string order; HearParent(&order);) {
    TellParent(order == "cold" ? worker.Cold(static_cast<uint32_t>(number), plan.at("cold"))
                               : worker.Traffic(plan.at("traffic")));
  }
  return 0;
}

void RunServe(Bench& bench) {
  const uint64_t count = bench.Parameter("workers", 2, 4, 4);
  const uint64_t cold = bench.Parameter("cold_requests_each", 2, 8, 8);
  const uint64_t traffic = bench.Parameter("requests_each", 4, 60, 300);
  const auto daemon = StartSharedDaemon(bench, "serve", 384 * kMiB);
  if (daemon == nullptr) return;
  {
    std::vector<std::unique_ptr<Partner>> workers;
    for (uint64_t i = 0; i < count; ++i) {
      auto worker = Partner::Start("serve-worker", {{"address", daemon->process->address()},
                                                    {"worker", i},
                                                    {"cold", cold},
                                                    {"traffic", traffic}});
      if (!bench.Check(worker.ok(), worker.status().ToString())) return;
      workers.push_back(*std::move(worker));
    }
    for (const auto& worker : workers) {
      const auto ready = worker->Hear(kPatience);
      if (!bench.Check(ready.ok(), ready.status().ToString())) return;
    }
    Served first, then;
    const double start = NowMicros();
    if (!AskAll(bench, workers, "cold", &first)) return;
    const double between = NowMicros();
    if (!AskAll(bench, workers, "traffic", &then)) return;
    Report(bench, "a new system prompt", first, between - start);
    Report(bench, "conversations", then, NowMicros() - between);
    bench.Judge({.name = absl::StrCat(count, " workers x ", cold,
                                      " cold requests compute a system prompt once"),
                 .ours = absl::StrCat(first.prompt_tokens_computed, " tokens computed"),
                 .reference = absl::StrCat("prompt ", kPromptTokens, " tokens"),
                 .seen = static_cast<double>(first.prompt_tokens_computed) / kPromptTokens,
                 .limit = 1,
                 .runs = first.requests});
  }
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
