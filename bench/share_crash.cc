// Kills of the daemon and of its workers, and how soon the next daemon has the first hit.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"

#include "bench/crash_loop.h"
#include "bench/raw_transfer.h"
#include "bench/share.h"
#include "bench/share_reader.h"
#include "bench/timing.h"

namespace prefixd::bench {
namespace {

double Number(uint64_t value) { return static_cast<double>(value); }

void JudgeKills(Bench& bench, const CrashReport& report) {
  bench.Judge({.name = "kill -9: pages resident at the kill that are hits again",
               .ours = absl::StrCat(report.hit_tokens, " tokens"),
               .reference = absl::StrCat(report.resident_tokens, " tokens before"),
               .measure = "share",
               .seen = 100 * Number(report.hit_tokens) / Number(report.resident_tokens),
               .at_most = false,
               .limit = 99,
               .unit = " %",
               .runs = report.kills});
  bench.Judge({.name = "kill -9: bytes in RAM at the kill that are in RAM again",
               .ours = BytesText(Number(report.ram_bytes_after)),
               .reference = BytesText(Number(report.ram_bytes)) + " before",
               .measure = "share",
               .seen = 100 * Number(report.ram_bytes_after) / Number(report.ram_bytes),
               .at_most = false,
               .limit = 99,
               .unit = " %",
               .runs = 1});
  bench.Judge({.name = absl::StrCat("kill -9 under load, ", report.killed_while_starting,
                                    " while starting: wrong bytes"),
               .ours = absl::StrCat(report.work.cached_tokens, " tokens read, ",
                                    report.work.in_place_tokens, " in place, ",
                                    report.work.committed_tokens, " committed, ",
                                    report.work.outlived, " held sequences read again"),
               .measure = "wrong",
               .seen = Number(report.work.wrong),
               .limit = 0,
               .runs = report.kills});
  bench.Judge({.name = "kill -9: left behind when the workers are gone",
               .ours = ToText(report.leaks),
               .measure = "sum",
               .seen = Number(report.leaks.total()),
               .limit = 0,
               .runs = report.kills});
}

void KillDaemons(Bench& bench, uint64_t kills) {
  const ArenaFolder folder;
  const std::string directory = bench.directory() + "/kills";
  std::filesystem::create_directories(directory);
  const auto report =
      RunCrashLoop({.directory = directory, .arena = folder.file("arena"), .kills = kills});
  if (!bench.Check(report.ok(), report.status().ToString())) return;
  bench.Check(report->work.wrong == 0, report->work.first_wrong);
  JudgeKills(bench, *report);
}

void KillWorkers(Bench& bench, uint64_t kills) {
  const ArenaFolder folder;
  const std::string directory = bench.directory() + "/deaths";
  std::filesystem::create_directories(directory);
  const auto report =
      RunWorkerDeaths({.directory = directory, .arena = folder.file("arena"), .kills = kills});
  if (!bench.Check(report.ok(), report.status().ToString())) return;
  bench.Check(report->work.wrong == 0, report->work.first_wrong);
  bench.Judge({.name = "worker kills: left behind",
               .ours = ToText(report->leaks) + ", nothing held after at most " +
                       MicrosText(report->slowest_cleanup_us),
               .measure = "sum",
               .seen = Number(report->leaks.total()),
               .limit = 0,
               .runs = report->kills});
}

// Exec to the first byte of a hit, with an arena of `ram` bytes of which `filled` hold pages.
double FirstHit(Bench& bench, SharedDaemon& daemon, const PageSource& source, uint32_t tokens) {
  const double start = NowMicros();
  auto process = DaemonProcess::Start(daemon.options);
  if (!bench.Check(process.ok(), process.status().ToString())) return -1;
  daemon.process = *std::move(process);
  auto session = RawSession::Open({.address = daemon.process->address(), .name = "share-first"});
  if (!bench.Check(session.ok(), session.status().ToString())) return -1;
  const auto space = (*session)->OpenSpace(source.identity());
  if (!bench.Check(space.ok(), space.status().ToString())) return -1;
  const RawSequence first = MakeSequence(*space, 1, tokens);
  const auto reply = (*session)->Acquire(AcquireOf(**session, first));
  if (!bench.Check(reply.ok(), reply.status().ToString())) return -1;
  v1::Answer answer = reply->answers(0);
  const absl::Status ready = (*session)->WaitReady(PageSource::kBlockTokens, &answer);
  const double us = NowMicros() - start;
  bench.Check(ready.ok() && answer.restorable_tokens() == tokens,
              absl::StrCat("after the restart: ", answer.restorable_tokens(), " of ", tokens,
                           " tokens ", ready.ToString()));
  v1::Answer again;
  const absl::Status compared = AcquireAndCompare(**session, source, first, &again);
  bench.Check(compared.ok(), compared.ToString());
  return us;
}

void StartAgain(Bench& bench, uint64_t ram, uint64_t filled, uint64_t restarts) {
  const auto daemon = StartSharedDaemon(bench, "first", ram);
  if (daemon == nullptr) return;
  const PageSource source(SharedGeometry());
  constexpr uint32_t kTokens = 2'048;
  const uint64_t sequences = filled / (kTokens * source.bytes_per_token());
  {
    auto session = RawSession::Open(
        {.address = daemon->process->address(), .name = "share-fill", .staging_bytes = 64 * kMiB});
    if (!bench.Check(session.ok(), session.status().ToString())) return;
    const auto space = (*session)->OpenSpace(source.identity());
    if (!bench.Check(space.ok(), space.status().ToString())) return;
    for (uint64_t i = 1; i <= sequences; ++i) {
      const absl::Status status = StoreStaged(**session, source, MakeSequence(*space, i, kTokens));
      if (!bench.Check(status.ok(), status.ToString())) return;
    }
  }
  std::vector<double> us;
  for (uint64_t i = 0; i < restarts; ++i) {  // each as systemd does it: at once
    if (!bench.Check(daemon->process->Kill(), "prefixd ended by itself")) return;
    us.push_back(FirstHit(bench, *daemon, source, kTokens));
    if (us.back() < 0) return;
  }
  bench.Judge({.name = absl::StrCat("kill -9: first hit after exec, ", kTokens, " tokens"),
               .ours = absl::StrCat("median ", MicrosText(Quantile(us, 0.5)), ", worst ",
                                    MicrosText(Quantile(us, 1))),
               .reference = absl::StrCat(
                   "arena ", BytesText(Number(ram)), " with ",
                   BytesText(Number(sequences * kTokens * source.bytes_per_token())), " of pages"),
               .measure = "worst",
               .seen = Quantile(us, 1) * 1e-6,
               .limit = 1,
               .unit = " s",
               .runs = us.size()});
}

}  // namespace

// T8: what a host of many cores showed: the kernel gives a killed daemon's locks back late.
void ShareRestarts(Bench& bench) {
  const uint64_t ram =
      bench.Parameter("adopting_arena_bytes", 256 * kMiB, 8192 * kMiB, 8192 * kMiB);
  const uint64_t filled =
      bench.Parameter("adopting_filled_bytes", 64 * kMiB, 1024 * kMiB, 1024 * kMiB);
  StartAgain(bench, ram, FittingBytes(bench, filled),
             bench.Parameter("adopting_restarts", 2, 20, 200));
}

void ShareCrash(Bench& bench) {
  const uint64_t ram = bench.Parameter("restart_arena_bytes", 256 * kMiB, 8192 * kMiB, 8192 * kMiB);
  const uint64_t filled =
      bench.Parameter("restart_filled_bytes", 64 * kMiB, 1024 * kMiB, 6144 * kMiB);
  StartAgain(bench, ram, FittingBytes(bench, filled), bench.Parameter("restarts", 1, 3, 5));
  KillDaemons(bench, bench.Parameter("daemon_kills", 2, 20, 1'000));
  KillWorkers(bench, bench.Parameter("worker_kills", 4, 200, 10'000));
}

}  // namespace prefixd::bench
