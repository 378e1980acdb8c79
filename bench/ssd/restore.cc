// Sequences that stand on the SSD alone, back into the arena.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/reference_loops.h"
#include "bench/common/timing.h"
#include "bench/ssd/ssd.h"

namespace prefixd::bench {
namespace {

struct Restored {
  double us = 0, first_group_us = 0, cpu_us = 0, estimated_us = 0;
};

// Acquires a sequence none of which is in RAM, waits, then compares every byte.
absl::StatusOr<Restored> Restore(SsdDaemon& daemon, const RawSequence& sequence) {
  RawSession& session = daemon.session();
  const double cpu = CpuMicros(daemon.pid()), start = NowMicros();
  PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireReply reply,
                           session.Acquire(AcquireOf(session, sequence)));
  v1::Answer answer = reply.answers(0);
  if (answer.restorable_tokens() != sequence.tokens.size()) {
    return absl::NotFoundError(absl::StrCat("restore: ", answer.restorable_tokens(), " of ",
                                            sequence.tokens.size(), " tokens are there"));
  }
  if (answer.ram_bytes() > 0) return absl::InternalError("restore: a part was in RAM already");
  Restored restored{.estimated_us = static_cast<double>(answer.load_us())};
  PREFIXD_RETURN_IF_ERROR(session.WaitGroupReady(answer, 0));
  restored.first_group_us = NowMicros() - start;
  PREFIXD_RETURN_IF_ERROR(session.WaitReady(PageSource::kBlockTokens, &answer));
  restored.us = NowMicros() - start;
  restored.cpu_us = CpuMicros(daemon.pid()) - cpu;
  PREFIXD_RETURN_IF_ERROR(CompareInPlace(session, daemon.source(), sequence, answer));
  PREFIXD_RETURN_IF_ERROR(session.Release({answer.lease()}));
  return restored;
}

void JudgeFirstGroup(Bench& bench, const std::vector<double>& first_us,
                     const std::vector<double>& all_us, uint32_t groups) {
  std::vector<double> shares;
  for (size_t i = 0; i < first_us.size(); ++i) shares.push_back(first_us[i] / all_us[i]);
  bench.Judge({.name = absl::StrCat("first of ", groups, " layer groups ready"),
               .ours = "after " + MicrosText(Quantile(first_us, 0.5)),
               .reference = "all after " + MicrosText(Quantile(all_us, 0.5)),
               .measure = "share",
               .seen = Quantile(shares, 0.5),
               .limit = 1.3 / groups,
               .runs = shares.size(),
               .spread_percent = SpreadPercent(shares)});
}

}  // namespace

void SsdRestore(Bench& bench) {
  const uint64_t wanted = bench.Parameter("restore_round_bytes", 16 * kMiB, 128 * kMiB, 256 * kMiB);
  const uint64_t rounds = bench.Parameter("restore_rounds", 2, 9, 15);
  const auto disk = RawDisk::Open(bench.directory());
  if (!bench.Check(disk != nullptr, "no O_DIRECT in " + bench.directory())) return;
  const uint64_t ram = wanted * 4 + 512 * kMiB;
  const auto daemon = SsdDaemon::Start(bench, {.name = "restore",
                                               .ram_bytes = ram,
                                               .ssd_bytes = wanted * rounds + ram * 2 + 1024 * kMiB,
                                               .geometry = FourGroups()});
  if (daemon == nullptr) return;
  const uint32_t tokens = daemon->TokensIn(wanted);
  const uint64_t bytes = tokens / PageSource::kBlockTokens * daemon->source().block_bytes();
  // Both sides' bytes are written in turn and read once, in that order: a host's cache that keeps
  // some of them keeps as much of either.
  for (uint64_t round = 1; round <= rounds; ++round) {
    absl::Status status = daemon->Store(daemon->Sequence(round, tokens));
    if (status.ok()) status = daemon->stats().Flush();
    if (!bench.Check(status.ok(), status.ToString())) return;
    if (!bench.Check(disk->Append(bytes / kMiB * kMiB), "raw appending failed")) return;
  }
  // Everything leaves RAM for others. The arena's memory is touched then: what is measured is
  // reading, not the kernel giving out pages.
  for (uint64_t done = 0, number = rounds; done < ram * 5 / 4; done += bytes) {
    absl::Status status = daemon->Store(daemon->Sequence(++number, tokens));
    if (status.ok()) status = daemon->stats().Flush();
    if (!bench.Check(status.ok(), status.ToString())) return;
  }

  MovedRounds seen;
  std::vector<double> first_us, estimates;
  for (uint64_t round = 1; round <= rounds; ++round) {
    const auto restored = Restore(*daemon, daemon->Sequence(round, tokens));
    if (!bench.Check(restored.ok(), restored.status().ToString())) return;
    seen.Add(0, bytes, restored->us, restored->cpu_us);
    first_us.push_back(restored->first_group_us);
    estimates.push_back(restored->estimated_us / restored->us);
    const double cpu = OwnCpuMicros(), start = NowMicros();
    if (!bench.Check(disk->Read(bytes / kMiB * kMiB), "raw reading failed")) return;
    seen.Add(1, bytes / kMiB * kMiB, NowMicros() - start, OwnCpuMicros() - cpu);
  }
  JudgeDisk(bench, {"restore into the arena", "raw reading", 0.85, 0.35}, seen);
  JudgeFirstGroup(bench, first_us, seen.samples[0], daemon->source().groups());
  bench.Add({"load time that the answer estimates",
             {{"of_measured_p5_ratio", Quantile(estimates, 0.05)},
              {"of_measured_p95_ratio", Quantile(estimates, 0.95)}}});
  const absl::Status stopped = daemon->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
