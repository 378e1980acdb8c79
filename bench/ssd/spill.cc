// Dirty pages to the SSD: as fast as it goes, and at half that while workers go on committing.
#include <chrono>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/process_memory.h"
#include "bench/common/reference_loops.h"
#include "bench/common/timing.h"
#include "bench/ssd/ssd.h"

namespace prefixd::bench {
namespace {

class Spill {
 public:
  Spill(Bench& bench, SsdDaemon& daemon, RawDisk& disk, uint64_t bytes)
      : bench_(bench), daemon_(daemon), disk_(disk), tokens_(daemon.TokensIn(bytes)) {}

  // Bytes/s, 0 when something failed.
  double Sustained(uint64_t rounds) {
    MovedRounds seen;
    const Amplification before = Now();
    for (uint64_t round = 0; round < rounds; ++round) {
      // Each begins with the other side every other time.
      const bool good =
          round % 2 == 0 ? Flush(&seen) && Append(&seen) : Append(&seen) && Flush(&seen);
      if (!good) return 0;
    }
    JudgeDisk(bench_, {"sustained spill", "raw appending", 0.70, 0.6}, seen);
    JudgeAmplification(before);
    return seen.bytes_per_s(0);
  }

  // One page a commit, evenly.
  void Paced(double bytes_per_s, double seconds) {
    const uint64_t page_bytes = daemon_.source().block_bytes();
    const double interval_us = Number(page_bytes) * 1e6 / bytes_per_s;
    const auto commits = static_cast<uint64_t>(seconds * 1e6 / interval_us);
    std::vector<double> us;
    const double start = NowMicros();
    for (uint64_t i = 0; i < commits; ++i) {
      const double due = start + static_cast<double>(i) * interval_us;
      const double early = due - NowMicros();
      if (early > 0) std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(early));
      Moved moved;
      const absl::Status stored =
          daemon_.Store(daemon_.Sequence(++number_, PageSource::kBlockTokens), &moved);
      if (!bench_.Check(stored.ok(), stored.ToString())) return;
      us.push_back(moved.us);
    }
    const double rate = Number(commits * page_bytes) / (NowMicros() - start);
    bench_.Judge(
        {.name = "commit while spilling at half that rate",
         .ours = absl::StrCat("p50 ", MicrosText(Quantile(us, 0.5)), ", p99 ",
                              MicrosText(Quantile(us, 0.99)), ", longest ",
                              MicrosText(Quantile(us, 1))),
         .reference = absl::StrCat(RateText(rate, 1), " of ", RateText(bytes_per_s * 1e-6, 1),
                                   " wanted, pages of ", BytesText(Number(page_bytes))),
         .measure = "p99",
         .seen = Quantile(us, 0.99) * 1e-3,
         .limit = 5,
         .unit = " ms",
         .runs = us.size()});
    bench_.Judge({.name = "commit while spilling at half that rate, pace kept",
                  .ours = RateText(rate, 1),
                  .reference = "wanted " + RateText(bytes_per_s * 1e-6, 1),
                  .seen = rate * 1e6 / bytes_per_s,
                  .at_most = false,
                  .limit = 0.98,
                  .runs = us.size()});
  }

 private:
  struct Amplification {
    uint64_t process_bytes = 0, spilled_bytes = 0;
  };
  Amplification Now() {
    const auto spilled = daemon_.Counter("bytes.spilled");
    return {BytesWritten(daemon_.pid()), spilled.ok() ? *spilled : 0};
  }
  bool Flush(MovedRounds* seen) {
    const absl::Status stored = daemon_.Store(daemon_.Sequence(++number_, tokens_));
    if (!bench_.Check(stored.ok(), stored.ToString())) return false;
    const double cpu = CpuMicros(daemon_.pid()), start = NowMicros();
    const absl::Status flushed = daemon_.stats().Flush();
    seen->Add(0, bytes(), NowMicros() - start, CpuMicros(daemon_.pid()) - cpu);
    return bench_.Check(flushed.ok(), flushed.ToString());
  }
  bool Append(MovedRounds* seen) {
    const double cpu = OwnCpuMicros(), start = NowMicros();
    const bool good = disk_.Append(bytes() / kMiB * kMiB);
    seen->Add(1, bytes() / kMiB * kMiB, NowMicros() - start, OwnCpuMicros() - cpu);
    disk_.Remove();
    return bench_.Check(good, "raw appending failed");
  }
  uint64_t bytes() const {
    return tokens_ / PageSource::kBlockTokens * daemon_.source().block_bytes();
  }
  void JudgeAmplification(const Amplification& before) {
    const Amplification after = Now();
    const double process = Number(after.process_bytes - before.process_bytes);
    const double spilled = Number(after.spilled_bytes - before.spilled_bytes);
    if (!bench_.Check(spilled > 0, "nothing was spilled")) return;
    bench_.Judge({.name = "write amplification of insertion",
                  .ours = "written " + BytesText(process),
                  .reference = "spilled " + BytesText(spilled),
                  .seen = process / spilled,
                  .limit = 1.02,
                  .runs = 1});
  }

  Bench& bench_;
  SsdDaemon& daemon_;
  RawDisk& disk_;
  const uint32_t tokens_;
  uint64_t number_ = 0;
};

}  // namespace

void SsdSpill(Bench& bench) {
  const uint64_t bytes = bench.Parameter("spill_round_bytes", 16 * kMiB, 256 * kMiB, 512 * kMiB);
  const uint64_t rounds = bench.Parameter("spill_rounds", 2, 7, 11);
  const uint64_t seconds = bench.Parameter("paced_seconds", 1, 10, 30);
  const auto disk = RawDisk::Open(bench.directory());
  if (!bench.Check(disk != nullptr, "no O_DIRECT in " + bench.directory())) return;
  // Never more than a quarter is dirty: nothing is spilled before it is asked for.
  const auto daemon = SsdDaemon::Start(bench, {.name = "spill",
                                               .ram_bytes = bytes * 5 + 128 * kMiB,
                                               .ssd_bytes = bytes * rounds * 2 + 1024 * kMiB});
  if (daemon == nullptr) return;
  Spill spill(bench, *daemon, *disk, bytes);
  const double bytes_per_s = spill.Sustained(rounds);
  if (bytes_per_s > 0) spill.Paced(bytes_per_s / 2, static_cast<double>(seconds));
  const absl::Status stopped = daemon->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
