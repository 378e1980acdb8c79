// How soon the next daemon has the first hit after kill -9. tests/crash kills under load.
#include <string>

#include "absl/strings/str_cat.h"

#include "bench/common/raw_transfer.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"

namespace prefixd::bench {
namespace {

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

// Also T8: the kernel of a host with many cores gives a killed daemon's locks back late.
void ShareCrash(Bench& bench) {
  const uint64_t ram = bench.Parameter("restart_arena_bytes", 256 * kMiB, 8192 * kMiB);
  const uint64_t filled = bench.Parameter("restart_filled_bytes", 64 * kMiB, 1024 * kMiB);
  StartAgain(bench, ram, FittingBytes(bench, filled), bench.Parameter("restarts", 2, 20, 200));
}

}  // namespace prefixd::bench
