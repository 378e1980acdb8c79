// prefixd-bench: every measurement that the project claims. See --help.
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"

#include "bench/common/bench.h"
#include "bench/common/machine.h"
#include "bench/common/partner.h"
#include "bench/common/workloads.h"
#include "grpc/grpc.h"

namespace prefixd::bench {
namespace {

struct Workload {
  const char* name;
  const char* help;
  void (*run)(Bench&);
};
constexpr Workload kWorkloads[] = {
    {"kernels", "quantize, dequantize and attention against memcpy and a stream read", RunKernels},
    {"kv-cache", "a whole model's KV cache: memory, errors and times of each mode", RunKvCache},
    {"share", "zero copies between workers, kill -9: every promised figure and its target",
     RunShare},
    {"quality", "what KV formats cost a real model on held-out text", RunQuality},
    {"trace", "real workloads: hit rate by tier, SSD writes, beside a simulated policy", RunTrace},
    {"hits", "hits a second that many workers get, and what is left while they store", RunHits},
    {"hostile", "a quiet client beside the worst legal requests of others", RunHostile},
    {"engines", "vLLM alone, with prefixd and with LMCache: time to the first token", RunEngines},
    {"ssd", "spill, restore, churn, restart against a raw disk: every promised figure", RunSsd},
    {"fleet", "many hosts and one shared tier, on paper: hits, network, what each rule gives",
     RunFleet},
    {"remote", "the shared tier's client beside raw TCP and Redis itself, and a server that stops",
     RunRemote},
};

struct Arguments {
  bool smoke = false;
  bool quick = false;
  uint64_t seconds = 0;
  uint64_t workers = 0;
  bool targets = false;
  bool json = false;
  std::vector<std::string> only;
  std::string directory = std::filesystem::temp_directory_path();
  std::string arena_folder;
  KvCacheOptions kv_cache;
  std::string model, corpus, trace;
  std::vector<std::string> workloads;
};

nlohmann::json Object(const std::vector<Figure>& figures) {
  nlohmann::json object = nlohmann::json::object();
  for (const Figure& figure : figures) object[figure.name] = figure.value;
  return object;
}

nlohmann::json ToJson(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"target", machine.target},
          {"memory_bytes", machine.memory_bytes},
          {"load_average", machine.load_average}};
}

nlohmann::json ToJson(const Target& target) {
  return {{"name", target.name},
          {"ours", target.ours},
          {"reference", target.reference},
          {"measure", target.measure},
          {"seen", target.seen},
          {target.at_most ? "at_most" : "at_least", target.limit},
          {"unit", target.unit},
          {"runs", target.runs},
          {"spread_percent", target.spread_percent},
          {"holds", target.Holds()}};
}

nlohmann::json ToJson(const Bench& bench) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Row& row : bench.rows()) {
    nlohmann::json object = Object(row.figures);
    object["name"] = row.name;
    rows.push_back(std::move(object));
  }
  nlohmann::json targets = nlohmann::json::array();
  for (const Target& target : bench.targets()) targets.push_back(ToJson(target));
  return {{"workload", bench.workload()}, {"parameters", Object(bench.parameters())},
          {"rows", std::move(rows)},      {"targets", std::move(targets)},
          {"notes", bench.notes()},       {"failures", bench.failures()}};
}

size_t MissedTargets(const Bench& bench) {
  return static_cast<size_t>(std::count_if(bench.targets().begin(), bench.targets().end(),
                                           [](const Target& target) { return !target.Holds(); }));
}

// Repeats what was wrong, because many readers see only the end of a log.
void RepeatFailures(const std::vector<std::string>& failures) {
  for (const std::string& what : failures) {
    std::fprintf(stderr, "prefixd-bench: wrong: %s\n", what.c_str());
  }
}

// Runs the chosen workloads (all when none is chosen). Returns how many results were wrong and how
// many targets were missed; smoke's sizes say nothing about targets.
size_t RunAll(const Arguments& arguments, const std::string& directory) {
  const Machine machine = ThisMachine();
  if (!arguments.json) std::printf("machine: %s\n", ToText(machine).c_str());
  nlohmann::json reports = nlohmann::json::array();
  size_t missed = 0;
  std::vector<std::string> failures;
  for (const Workload& workload : kWorkloads) {
    const std::vector<std::string>& chosen = arguments.workloads;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), workload.name) == chosen.end()) {
      continue;
    }
    Bench bench({.workload = workload.name,
                 .smoke = arguments.smoke,
                 .quick = arguments.quick,
                 .seconds = arguments.seconds,
                 .workers = arguments.workers,
                 .targets_only = arguments.targets,
                 .only = arguments.only,
                 .directory = directory,
                 .arena_folder = arguments.arena_folder,
                 .kv_cache = arguments.kv_cache,
                 .model = arguments.model,
                 .corpus = arguments.corpus,
                 .trace = arguments.trace,
                 .quiet = arguments.json});
    workload.run(bench);
    for (const std::string& what : bench.failures()) {
      failures.push_back(std::string(workload.name) + ": " + what);
    }
    if (!arguments.smoke) missed += MissedTargets(bench);
    reports.push_back(ToJson(bench));
  }
  if (arguments.json) {
    const nlohmann::json report = {{"machine", ToJson(machine)},
                                   {"smoke", arguments.smoke},
                                   {"quick", arguments.quick},
                                   {"workloads", reports}};
    std::printf("%s\n", report.dump(2).c_str());
  }
  RepeatFailures(failures);
  return failures.size() + missed;
}

int RunInTemporaryDirectory(const Arguments& arguments) {
  std::string directory = arguments.directory + "/prefixd-bench-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) {
    std::fprintf(stderr, "prefixd-bench: cannot make a directory in %s\n",
                 arguments.directory.c_str());
    return 1;
  }
  const size_t failures = RunAll(arguments, directory);
  std::error_code ignored;  // what is left behind is the temporary folder's to clean
  std::filesystem::remove_all(directory, ignored);
  return failures == 0 ? 0 : 1;
}

void AddKvCacheOptions(CLI::App& command, KvCacheOptions& options) {
  command.add_option("--layers", options.layers)->capture_default_str()->check(CLI::PositiveNumber);
  command.add_option("--seq-len", options.seq_len)
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command.add_option("--heads", options.heads, "that have keys and values")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command.add_option("--head-dim", options.head_dim)
      ->capture_default_str()
      ->check(CLI::Range(1, 65536));
  command.add_option("--group-size", options.group_size)
      ->capture_default_str()
      ->check(CLI::IsMember({32, 64, 128}));
  command
      .add_option("--rotation", options.rotation, "hadamard: what it is worth, beside the table")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "hadamard"}));
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Measures prefixd. Without a workload: all of them. Every workload verifies its results "
      "before it\ntimes them; exit code 1 when one is wrong or falls short of its target.");
  Arguments arguments;
  std::string child, plan;
  app.add_flag("--smoke", arguments.smoke,
               "tiny sizes: a test of the workloads, not a measurement");
  app.add_flag("--quick", arguments.quick,
               "lower counts, same targets; the whole of share takes two minutes");
  app.add_flag("--targets", arguments.targets, "only what has a target, a line each");
  app.add_option(
         "--only", arguments.only,
         "only these families of figures. share: acquire, match, read, gather, python, streams, "
         "tls, fairness, crash; kernels: decode, batch, prefill, convert, numbers, table, "
         "overhead, fused; trace: ram, tiers, hybrid; ssd: spill, restore, "
         "churn, restart, budget; hostile: limits, beside, crowd; remote: load, store, hits, find")
      ->delimiter(',');
  app.add_flag("--json", arguments.json, "one JSON object instead of text");
  app.add_option("--directory", arguments.directory,
                 "where sockets and the SSD tier stand during the run: names the disk to measure")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app.add_option(
         "--arena", arguments.arena_folder,
         "kernels: the tmpfs that its arena file stands on (default: one with huge pages, as "
         "deploy/ mounts it for prefixd, where this process may mount; else /dev/shm)")
      ->check(CLI::ExistingDirectory);
  app.add_option("--model", arguments.model,
                 "quality: folder of a byte-level checkpoint (default: the shipped one)")
      ->check(CLI::ExistingDirectory);
  app.add_option("--corpus", arguments.corpus,
                 "quality: text that the model was not trained on (default: the shipped sample)")
      ->check(CLI::ExistingFile);
  app.add_option("--child", child)->group("");  // hidden: how workloads start their workers
  app.add_option("--plan", plan)->group("");
  for (const Workload& workload : kWorkloads) {
    CLI::App* const command = app.add_subcommand(workload.name, workload.help)->fallthrough();
    if (workload.run == RunKvCache) AddKvCacheOptions(*command, arguments.kv_cache);
    if (workload.run == RunHostile) {
      command->add_option("--seconds", arguments.seconds, "of attacks (default: 60; --quick: 20)")
          ->check(CLI::Range(1, 86'400));
    }
    if (workload.run == RunHits) {
      command->add_option("--workers", arguments.workers, "processes (default: all cores but two)")
          ->check(CLI::Range(1, 256));
    }
    if (workload.run == RunTrace || workload.run == RunFleet) {
      command->add_option(
          "FILE,--trace", arguments.trace,
          "conversation, claude_code_a (default: both) or a file of such lines, zstd");
    }
  }
  CLI11_PARSE(app, argc, argv);
  if (!child.empty()) return RunChild(child, plan);
  for (const CLI::App* chosen : app.get_subcommands()) {
    arguments.workloads.push_back(chosen->get_name());
  }
  return RunInTemporaryDirectory(arguments);
}

// As prefixd-worker, but the daemons that are started here begin as anybody's.
void ReceiveOnTheThreadThatReads() {
  constexpr const char* kStrategy = "GRPC_POLL_STRATEGY";
  if (std::getenv(kStrategy) != nullptr) return;
  ::setenv(kStrategy, "poll", 0);
  ::grpc_init();  // reads it
  ::unsetenv(kStrategy);
}

}  // namespace
}  // namespace prefixd::bench

int main(int argc, char** argv) {
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as prefixd
  prefixd::bench::ReceiveOnTheThreadThatReads();
  return prefixd::bench::Main(argc, argv);
}
