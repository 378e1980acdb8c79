// budget: client processes commit several times what prefixd's RAM budget holds and read it back
// (A4 ram-budget). Footprint = RssAnon of the daemon: its arena is private anonymous memory.
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "bench/child_process.h"
#include "bench/daemon_process.h"
#include "bench/process_memory.h"
#include "bench/stored_sequences.h"
#include "bench/timing.h"
#include "bench/workloads.h"

namespace prefixd::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kAllowanceBytes = 64 * kMiB;  // what the footprint may have above the budget
constexpr uint32_t kMinTokens = 300, kMaxTokens = 3'000;
const Geometry kGeometry{.model = "llama3-8b, 2 layers", .layers = 2, .kv_heads = 8, .dim = 128};

struct ClientPlan {
  std::string address;
  uint64_t client = 0;
  uint64_t bytes = 0;  // to commit
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientPlan, address, client, bytes)

struct ClientResult {
  uint64_t committed_bytes = 0, read_bytes = 0;
  uint64_t reads = 0;
  uint64_t failures = 0;     // a commit or a load that ended in an error
  uint64_t short_reads = 0;  // fewer tokens than were stored
  uint64_t wrong_reads = 0;  // bytes that are not those stored
  std::string first_trouble;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClientResult, committed_bytes, read_bytes, reads, failures,
                                   short_reads, wrong_reads, first_trouble)

class BudgetClient {
 public:
  explicit BudgetClient(const ClientPlan& plan)
      : plan_(plan),
        random_(static_cast<uint32_t>(plan.client)),
        client_({.address = plan.address, .name = absl::StrCat("bench-", plan.client)}) {}

  ClientResult Run() {
    Result<Space> space;
    if (client_.WaitAttached(seconds(60))) space = client_.OpenSpace(SpecOf(kGeometry));
    if (!space.held) {
      Note(&result_.failures, "no space: " + space.status.message);
      return result_;
    }
    space_ = std::move(space.value());
    while (result_.committed_bytes < plan_.bytes && result_.failures == 0) {
      Store();
      Read(stored_.back());
      Read(stored_[random_() % stored_.size()]);
    }
    for (const SequenceName& name : stored_) Read(name);
    return result_;
  }

 private:
  void Note(uint64_t* counter, const std::string& what) {
    if (result_.first_trouble.empty()) result_.first_trouble = what;
    ++*counter;
  }
  Sequence Begin(const SequenceName& name) {
    return space_.Begin(TokensOf(name), {.deadline = seconds(60), .load_deadline = seconds(60)});
  }
  void Store() {
    const SequenceName name{
        .seed = plan_.client << 32 | stored_.size(),
        .tokens = kMinTokens + static_cast<uint32_t>(random_() % (kMaxTokens - kMinTokens))};
    Sequence sequence = Begin(name);
    if (!sequence.match().status.ok()) {
      return Note(&result_.failures, "look-up: " + sequence.match().status.message);
    }
    const Status status = pattern_.Store(name, &sequence);
    if (!status.ok()) Note(&result_.failures, "commit: " + status.message);
    stored_.push_back(name);
    result_.committed_bytes += name.tokens * space_.payload_bytes_per_token();
  }
  void Read(const SequenceName& name) {
    Sequence sequence = Begin(name);
    if (!sequence.match().status.ok()) {
      return Note(&result_.failures, "look-up: " + sequence.match().status.message);
    }
    const uint32_t tokens = sequence.WaitAll();
    if (tokens < name.tokens) {
      Note(&result_.short_reads, absl::StrCat("read: ", tokens, " of ", name.tokens,
                                              " tokens: ", sequence.match().why_shorter));
    }
    if (tokens > 0 && !pattern_.Matches(name, tokens, sequence)) {
      Note(&result_.wrong_reads, absl::StrCat("read: wrong bytes in ", tokens, " tokens"));
    }
    ++result_.reads;
    result_.read_bytes += tokens * space_.payload_bytes_per_token();
    sequence.Release({.used_tokens = tokens});
  }

  const ClientPlan plan_;
  const SequencePattern pattern_{kGeometry, kMaxTokens};
  std::mt19937 random_;
  Client client_;
  Space space_;
  std::vector<SequenceName> stored_;
  ClientResult result_;
};

struct Footprint {
  std::vector<double> samples;  // bytes, 20 a second
};

// Samples until every client has ended. False: one did not end with 0.
bool WatchClients(std::vector<pid_t> clients, pid_t daemon, Footprint* footprint) {
  bool good = true;
  while (!clients.empty()) {
    footprint->samples.push_back(static_cast<double>(AnonymousBytes(daemon)));
    std::this_thread::sleep_for(milliseconds(50));
    std::erase_if(clients, [&](pid_t client) {
      int status = 0;
      if (::waitpid(client, &status, WNOHANG) == 0) return false;
      good = good && status == 0;
      return true;
    });
  }
  return good;
}

// The clients' results in one; counts what cannot be read as a failure.
ClientResult Collect(const std::vector<std::string>& outputs) {
  ClientResult all;
  for (const std::string& output : outputs) {
    const nlohmann::json json = nlohmann::json::parse(ReadText(output), nullptr, false);
    if (!json.is_object()) {
      ++all.failures;
      all.first_trouble = "a client said nothing";
      continue;
    }
    const auto one = json.get<ClientResult>();
    all.committed_bytes += one.committed_bytes;
    all.read_bytes += one.read_bytes;
    all.reads += one.reads;
    all.failures += one.failures;
    all.short_reads += one.short_reads;
    all.wrong_reads += one.wrong_reads;
    if (all.first_trouble.empty()) all.first_trouble = one.first_trouble;
  }
  return all;
}

void Report(Bench& bench, uint64_t budget, const Footprint& footprint, const ClientResult& all,
            double wall_us) {
  const double peak = Quantile(footprint.samples, 1);
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  bench.Add({"footprint",
             {{"peak_bytes", peak},
              {"median_bytes", Quantile(footprint.samples, 0.5)},
              {"limit_bytes", number(budget + kAllowanceBytes)},
              {"samples", number(footprint.samples.size())}}});
  bench.Add({"clients",
             {{"committed_bytes", number(all.committed_bytes)},
              {"read_bytes", number(all.read_bytes)},
              {"reads", number(all.reads)},
              {"failures", number(all.failures)},
              {"short_reads", number(all.short_reads)},
              {"wrong_reads", number(all.wrong_reads)},
              {"wall_us", wall_us}}});
  bench.Check(all.failures == 0, "a client failed: " + all.first_trouble);
  bench.Check(all.short_reads == 0, "stored tokens are missing: " + all.first_trouble);
  bench.Check(all.wrong_reads == 0, "wrong bytes: " + all.first_trouble);
  // Not in smoke: those sizes also run under sanitizers, whose own memory counts.
  bench.Check(bench.smoke() || peak <= number(budget + kAllowanceBytes),
              absl::StrCat("footprint ", static_cast<uint64_t>(peak), " bytes, the limit is ",
                           budget + kAllowanceBytes));
}

}  // namespace

int RunBudgetClient(const std::string& plan) {
  const nlohmann::json json = nlohmann::json::parse(plan, nullptr, false);
  if (!json.is_object()) return 2;
  BudgetClient client(json.get<ClientPlan>());
  std::printf("%s\n", nlohmann::json(client.Run()).dump().c_str());
  return 0;
}

void RunBudget(Bench& bench) {
  const uint64_t budget = bench.Parameter("ram_bytes", 64 * kMiB, 256 * kMiB);
  const uint64_t commit = bench.Parameter("commit_bytes", 96 * kMiB, 1024 * kMiB);
  const uint64_t clients = bench.Parameter("clients", 2, 4);
  const std::string directory = bench.directory() + "/budget";
  std::filesystem::create_directory(directory);
  auto daemon =
      DaemonProcess::Start({.directory = directory, .ram = std::to_string(budget), .ssd = "8GiB"});
  if (!bench.Check(daemon.ok(), daemon.status().ToString())) return;

  const double start_us = NowMicros();
  std::vector<pid_t> pids;
  std::vector<std::string> outputs;
  for (uint64_t client = 0; client < clients; ++client) {
    const nlohmann::json plan =
        ClientPlan{.address = (*daemon)->address(), .client = client, .bytes = commit / clients};
    outputs.push_back(absl::StrCat(directory, "/client-", client, ".json"));
    const auto pid = StartProcess(
        {.arguments = {ThisProgram(), "--budget-client", plan.dump()}, .out = outputs.back()});
    if (bench.Check(pid.ok(), pid.status().ToString())) pids.push_back(*pid);
  }
  Footprint footprint;
  bench.Check(WatchClients(pids, (*daemon)->pid(), &footprint), "a client ended badly");
  const double wall_us = NowMicros() - start_us;
  if (!footprint.samples.empty()) Report(bench, budget, footprint, Collect(outputs), wall_us);
  const absl::Status stopped = (*daemon)->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
