// The RAM budget as the kernel sees it: under churn, and under very long sequences.
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/memory_cgroup.h"
#include "bench/common/process_memory.h"
#include "bench/common/timing.h"
#include "bench/ssd/ssd.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kAllowanceBytes = 64 * kMiB;

// What a daemon has of memory and what it says that it has.
class MemoryWatch {
 public:
  explicit MemoryWatch(const SsdDaemon& daemon)
      : pid_(daemon.pid()),
        arena_(daemon.arena()),
        stats_(daemon.address()),
        watch_([this] { Sample(); }) {}
  void Stop() { watch_.Stop(); }
  // After Stop.
  void Judge(Bench& bench, const std::string& name, uint64_t budget) const {
    if (!bench.Check(!footprint_.empty(), name + ": no sample of memory")) return;
    bench.Judge({.name = name + ": footprint (sampled, no cgroup)",
                 .ours = "most " + BytesText(Quantile(footprint_, 1)),
                 .reference = "budget " + BytesText(Number(budget)) + " and 64 MiB",
                 .seen = Quantile(footprint_, 1) / Number(budget + kAllowanceBytes),
                 .limit = 1,
                 .runs = footprint_.size()});
    bench.Judge({.name = name + ": sum of the accounted parts",
                 .ours = "most " + BytesText(Quantile(parts_, 1)),
                 .reference = "budget " + BytesText(Number(budget)),
                 .seen = Quantile(parts_, 1) / Number(budget),
                 .limit = 1,
                 .runs = parts_.size()});
  }

 private:
  void Sample() {
    const auto stats = stats_.Get();
    if (!stats.ok()) return;
    uint64_t parts = 0;
    for (const v1::Count& part : stats->ram_parts()) parts += part.value();
    parts_.push_back(Number(parts));
    struct stat arena {};
    const bool there = ::stat(arena_.c_str(), &arena) == 0;
    footprint_.push_back(Number(AnonymousBytes(pid_) + RamPartOf(*stats, "staging") +
                                (there ? static_cast<uint64_t>(arena.st_blocks) * 512 : 0)));
  }
  const pid_t pid_;
  const std::string arena_;
  DaemonStats stats_;
  std::vector<double> footprint_, parts_;
  Watch watch_;  // the last: it begins at once
};

// Where we may make one: the daemon and what it maps run in it.
std::unique_ptr<MemoryCgroup> CgroupOf(Bench& bench, uint64_t ram) {
  auto made = MemoryCgroup::Make(ram + kAllowanceBytes);
  if (made.ok()) return *std::move(made);
  bench.Note(absl::StrCat("churn in a cgroup of RAM budget + 64 MiB was not run: ",
                          std::string(made.status().message())));
  return nullptr;
}

void JudgeCgroup(Bench& bench, const MemoryCgroup& cgroup, uint64_t ram, uint64_t bytes) {
  bench.Judge({.name = absl::StrCat("churn of ", BytesText(Number(bytes)),
                                    " in a cgroup of RAM budget + 64 MiB"),
               .ours = absl::StrCat("peak ", BytesText(Number(cgroup.peak_bytes()))),
               .reference = absl::StrCat("limit ", BytesText(Number(ram + kAllowanceBytes))),
               .measure = "out-of-memory events",
               .seen = Number(cgroup.oom_kills()),
               .limit = 0,
               .runs = 1});
}

std::unique_ptr<SsdDaemon> StartIn(Bench& bench, const MemoryCgroup* cgroup,
                                   const SsdDaemon::Options& options) {
  if (cgroup == nullptr) return SsdDaemon::Start(bench, options);
  const absl::Status entered = cgroup->Enter();
  if (!bench.Check(entered.ok(), entered.ToString())) return nullptr;
  std::unique_ptr<SsdDaemon> daemon = SsdDaemon::Start(bench, options);
  const absl::Status left = cgroup->Leave();
  if (!bench.Check(left.ok(), left.ToString())) return nullptr;
  return daemon;
}

void FootprintUnderChurn(Bench& bench) {
  const uint64_t ram = bench.Parameter("footprint_ram_bytes", 96 * kMiB, 256 * kMiB, 256 * kMiB);
  // So many bytes, and for so long.
  const uint64_t bytes = bench.Parameter("footprint_bytes", 128 * kMiB, 4096 * kMiB, 16384 * kMiB);
  const uint64_t seconds = bench.Parameter("footprint_seconds", 0, 20, 30 * 60);
  const std::unique_ptr<MemoryCgroup> cgroup = CgroupOf(bench, ram);
  const auto daemon = StartIn(
      bench, cgroup.get(),
      {.name = "footprint", .ram_bytes = ram, .ssd_bytes = 1024 * kMiB, .staging_bytes = 4 * kMiB});
  if (daemon == nullptr) return;
  MemoryWatch memory(*daemon);
  const uint32_t tokens = daemon->TokensIn(8 * kMiB);
  const uint64_t sequence_bytes =
      tokens / PageSource::kBlockTokens * daemon->source().block_bytes();
  const double end = NowMicros() + Number(seconds) * 1e6;
  uint64_t count = 0;
  while (count < bytes / sequence_bytes || NowMicros() < end) {
    const uint64_t number = ++count;
    absl::Status status = daemon->Store(daemon->Sequence(number, tokens));
    if (status.ok() && number > 20) {  // from the SSD
      v1::Answer answer;
      status = AcquireAndCompare(daemon->session(), daemon->source(),
                                 daemon->Sequence(number - 20, tokens), &answer);
      if (status.ok()) status = daemon->session().Release({answer.lease()});
    }
    if (!bench.Check(status.ok(), status.ToString())) return;
  }
  memory.Stop();
  memory.Judge(bench, absl::StrCat("churn of ", BytesText(Number(count * sequence_bytes))), ram);
  if (cgroup != nullptr) JudgeCgroup(bench, *cgroup, ram, count * sequence_bytes);
  const absl::Status stopped = daemon->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

// S0-06, S2-24.
void LongSequences(Bench& bench) {
  const uint64_t ram = bench.Parameter("long_ram_bytes", 96 * kMiB, 2048 * kMiB, 2048 * kMiB);
  const uint64_t tokens = bench.Parameter("long_tokens", 4'096, 262'144, 262'144);
  const Geometry geometry{.model = "1 layer of 1 head", .layers = 1, .kv_heads = 1, .dim = 64};
  const auto daemon = SsdDaemon::Start(
      bench, {.name = "long", .ram_bytes = ram, .ssd_bytes = 2048 * kMiB, .geometry = geometry});
  if (daemon == nullptr) return;
  MemoryWatch memory(*daemon);
  std::vector<uint64_t> lengths(8, tokens);
  lengths.push_back(4 * tokens);
  uint64_t whole = 0;
  const double start = NowMicros();
  for (uint64_t pass = 0; pass < 2; ++pass) {
    for (uint64_t number = 1; number <= lengths.size(); ++number) {
      const auto sequence = daemon->Sequence(number, static_cast<uint32_t>(lengths[number - 1]));
      v1::Answer answer;
      absl::Status status =
          pass == 0 ? daemon->Store(sequence)
                    : AcquireAndCompare(daemon->session(), daemon->source(), sequence, &answer);
      if (status.ok() && pass == 1) {
        ++whole;
        status = daemon->session().Release({answer.lease()});
      }
      if (!bench.Check(status.ok(), status.ToString())) return;
    }
  }
  memory.Stop();
  bench.Judge({.name = absl::StrCat("8 sequences of ", tokens, " tokens and one of ", 4 * tokens),
               .ours = absl::StrCat(whole, " came back whole"),
               .reference = absl::StrCat(lengths.size(), " stored, ",
                                         MicrosText(NowMicros() - start), " for both"),
               .measure = "whole",
               .seen = Number(whole),
               .at_most = false,
               .limit = Number(lengths.size()),
               .runs = lengths.size()});
  memory.Judge(bench, "long sequences", ram);
  const absl::Status stopped = daemon->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace

void SsdBudget(Bench& bench) {
  FootprintUnderChurn(bench);
  LongSequences(bench);
}

}  // namespace prefixd::bench
