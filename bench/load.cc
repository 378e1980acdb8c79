// load: what a match says about the time to load against the time it then takes (A6
// load-estimate). A real prefixd; sequences of random length in two geometries; every load is of
// another sequence and compared byte for byte.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "bench/daemon_process.h"
#include "bench/stored_sequences.h"
#include "bench/timing.h"
#include "bench/workloads.h"

namespace prefixd::bench {
namespace {

using std::chrono::seconds;

const Geometry kGeometries[] = {
    {.model = "small", .layers = 4, .kv_heads = 2, .dim = 64},
    {.model = "llama3-8b, 2 layers", .layers = 2, .kv_heads = 8, .dim = 128},
};

// Lengths spread evenly over their logarithms: as many short loads as long ones.
std::vector<SequenceName> RandomSequences(uint64_t count, uint64_t max_tokens) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> log_tokens(std::log(64.0),
                                                    std::log(static_cast<double>(max_tokens)));
  std::vector<SequenceName> names;
  for (uint64_t i = 0; i < count; ++i) {
    names.push_back({.seed = i, .tokens = static_cast<uint32_t>(std::exp(log_tokens(random)))});
  }
  return names;
}

struct Sample {
  double estimated_us = 0, measured_us = 0;
  uint64_t bytes = 0;
};

// One client of one life of the daemon, with every geometry's space open.
class Worker {
 public:
  Worker(Bench& bench, const std::string& address, uint64_t max_tokens)
      : bench_(bench), client_({.address = address, .name = "bench"}) {
    for (const Geometry& geometry : kGeometries) {
      patterns_.emplace_back(geometry, static_cast<uint32_t>(max_tokens));
    }
  }
  bool Attach() {
    if (!bench_.Check(client_.WaitAttached(seconds(60)), "prefixd does not answer")) return false;
    for (const Geometry& geometry : kGeometries) {
      Result<Space> space = client_.OpenSpace(SpecOf(geometry));
      if (!bench_.Check(space.ok(), space.status.message)) return false;
      spaces_.push_back(std::move(space.value()));
    }
    return true;
  }
  void Store(const SequenceName& name) {
    Sequence sequence = Begin(name);
    const Status status = pattern(name).Store(name, &sequence);
    bench_.Check(status.ok(), "store: " + status.message);
  }
  // Loads, compares and releases; the release tells the daemon how long it took.
  Sample Load(const SequenceName& name, bool from_ssd) {
    Sequence sequence = Begin(name);
    const MatchInfo match = sequence.match();
    const uint32_t tokens = sequence.WaitAll();
    const std::string who = "load of " + std::to_string(name.tokens) + " tokens";
    bench_.Check(tokens == name.tokens, who + ": only " + std::to_string(tokens) + " came, " +
                                            match.why_shorter + match.status.message);
    bench_.Check((from_ssd ? match.ram_bytes : match.ssd_bytes) == 0,
                 who + ": from the other tier");
    bench_.Check(pattern(name).Matches(name, tokens, sequence), who + ": wrong bytes");
    const Sample sample{.estimated_us = static_cast<double>(match.estimated_load_us),
                        .measured_us = static_cast<double>(sequence.load_time().count()),
                        .bytes = match.ram_bytes + match.ssd_bytes};
    sequence.Release({.used_tokens = tokens});
    return sample;
  }

 private:
  static size_t GeometryOf(const SequenceName& name) { return name.seed % std::size(kGeometries); }
  const SequencePattern& pattern(const SequenceName& name) const {
    return patterns_[GeometryOf(name)];
  }
  Sequence Begin(const SequenceName& name) {
    return spaces_[GeometryOf(name)].Begin(TokensOf(name),
                                           {.deadline = seconds(30), .load_deadline = seconds(60)});
  }

  Bench& bench_;
  std::vector<SequencePattern> patterns_;
  Client client_;
  std::vector<Space> spaces_;
};

void Report(Bench& bench, const std::string& name, const std::vector<Sample>& samples) {
  std::vector<double> estimated, measured, ratios, rates;
  double within = 0;
  for (const Sample& sample : samples) {
    estimated.push_back(sample.estimated_us);
    measured.push_back(std::max(sample.measured_us, 1.0));
    ratios.push_back(estimated.back() / measured.back());
    rates.push_back(static_cast<double>(sample.bytes) * 1e6 / measured.back());
    within += ratios.back() >= 0.5 && ratios.back() <= 2 ? 1 : 0;
  }
  bench.Add({name,
             {{"loads", static_cast<double>(samples.size())},
              {"within_2x", within},
              {"estimated_median_us", Quantile(estimated, 0.5)},
              {"measured_median_us", Quantile(measured, 0.5)},
              {"estimated_of_measured_p5_ratio", Quantile(ratios, 0.05)},
              {"estimated_of_measured_p95_ratio", Quantile(ratios, 0.95)},
              {"rate_p95_bytes_per_s", Quantile(rates, 0.95)}}});
}

// One life of the daemon, with one worker in it.
template <typename Work>
void Live(Bench& bench, uint64_t max_tokens, const Work& work) {
  auto daemon =
      DaemonProcess::Start({.directory = bench.directory(), .ram = "1GiB", .ssd = "8GiB"});
  if (!bench.Check(daemon.ok(), daemon.status().ToString())) return;
  {
    Worker worker(bench, (*daemon)->address(), max_tokens);
    if (worker.Attach()) work(worker);
  }
  const absl::Status stopped = (*daemon)->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace

void RunLoad(Bench& bench) {
  const uint64_t loads = bench.Parameter("loads", 6, 100);
  const uint64_t max_tokens = bench.Parameter("max_tokens", 512, 8'000);
  std::vector<SequenceName> names = RandomSequences(loads, max_tokens);
  std::vector<Sample> from_ram, from_ssd;
  Live(bench, max_tokens, [&](Worker& worker) {
    for (const SequenceName& name : names) {
      worker.Store(name);
      from_ram.push_back(worker.Load(name, /*from_ssd=*/false));
    }
  });
  std::shuffle(names.begin(), names.end(), std::mt19937(8));
  Live(bench, max_tokens, [&](Worker& worker) {
    for (const SequenceName& name : names) from_ssd.push_back(worker.Load(name, /*from_ssd=*/true));
  });
  if (!from_ram.empty()) Report(bench, "from RAM", from_ram);
  if (!from_ssd.empty()) Report(bench, "from SSD", from_ssd);
}

}  // namespace prefixd::bench
