// 64 sessions attached, one of them fetching: what another one's Acquire feels of it.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/partner.h"
#include "bench/common/patience.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kTimedTokens = 2'048;
constexpr uint64_t kFetched = 1, kTimed = 2;  // the sequences' numbers

// us of one Acquire; its Release is not counted.
absl::StatusOr<double> AcquireOnce(RawSession& session, const RawSequence& sequence) {
  const double start = NowMicros();
  PREFIXD_ASSIGN_OR_RETURN(const v1::AcquireReply reply,
                           session.Acquire(AcquireOf(session, sequence)));
  const double us = NowMicros() - start;
  if (reply.answers(0).restorable_tokens() != sequence.tokens.size()) {
    return absl::DataLossError("acquire: " + reply.answers(0).ShortDebugString().substr(0, 300));
  }
  PREFIXD_RETURN_IF_ERROR(session.Release({reply.answers(0).lease()}));
  return us;
}

using Sessions = std::vector<std::unique_ptr<RawSession>>;

// The first one stores.
Sessions AttachAll(Bench& bench, const std::string& address, uint64_t count) {
  Sessions sessions;
  for (uint64_t i = 0; i < count; ++i) {
    auto session = RawSession::Open({.address = address,
                                     .name = absl::StrCat("share-", i),
                                     .staging_bytes = i == 0 ? 32 * kMiB : 0});
    if (!bench.Check(session.ok(), session.status().ToString())) return {};
    sessions.push_back(*std::move(session));
  }
  return sessions;
}

// us of `count` Acquires at least, and until `more` says that it is enough.
std::vector<double> Acquires(Bench& bench, RawSession& session, const RawSequence& sequence,
                             uint64_t count, const std::function<bool()>& more) {
  std::vector<double> us;
  while (us.size() < count || more()) {
    const absl::StatusOr<double> one = AcquireOnce(session, sequence);
    if (!bench.Check(one.ok(), one.status().ToString())) return {};
    us.push_back(*one);
  }
  return us;
}

bool StoreBoth(Bench& bench, RawSession& session, uint64_t space, uint32_t tokens) {
  const PageSource source(SharedGeometry());
  for (const RawSequence& sequence :
       {MakeSequence(space, kFetched, tokens), MakeSequence(space, kTimed, kTimedTokens)}) {
    const absl::Status status = StoreStaged(session, source, sequence);
    if (!bench.Check(status.ok(), status.ToString())) return false;
  }
  return true;
}

}  // namespace

void ShareFairness(Bench& bench) {
  const uint64_t sessions = bench.Parameter("fair_sessions", 8, 63, 63);  // and the fetching one
  const uint64_t wanted = bench.Parameter("fair_lease_bytes", 16 * kMiB, 512 * kMiB, 2048 * kMiB);
  const uint64_t fetched =
      bench.Parameter("fair_fetched_bytes", 32 * kMiB, 2048 * kMiB, 8192 * kMiB);
  const uint64_t acquires = bench.Parameter("fair_acquires", 20, 1'000, 2'000);
  const PageSource source(SharedGeometry());
  const uint64_t lease = FittingBytes(bench, wanted);
  const auto tokens =
      static_cast<uint32_t>(lease / source.block_bytes() * PageSource::kBlockTokens);
  const uint64_t short_bytes = kTimedTokens * source.bytes_per_token();
  const auto daemon = StartSharedDaemon(bench, "fair", lease * 5 / 2 + short_bytes + 192 * kMiB);
  if (daemon == nullptr) return;
  {
    const Sessions crowd = AttachAll(bench, daemon->process->address(), sessions);
    if (crowd.empty()) return;
    const auto mapped = std::count_if(crowd.begin(), crowd.end(), [](const auto& session) {
      return session->attached().arena();
    });
    RawSession& last = *crowd.back();  // is timed
    const auto space = crowd.front()->OpenSpace(source.identity());
    if (!bench.Check(space.ok(), space.status().ToString())) return;
    if (!StoreBoth(bench, *crowd.front(), *space, tokens)) return;
    const auto last_space = last.OpenSpace(source.identity());
    if (!bench.Check(last_space.ok(), last_space.status().ToString())) return;
    const RawSequence small = MakeSequence(*last_space, kTimed, kTimedTokens);
    const std::vector<double> alone = Acquires(bench, last, small, acquires, [] { return false; });
    auto fetcher = Partner::Start(
        "share-fetcher",
        {{"address", daemon->process->address()}, {"number", kFetched}, {"tokens", tokens}});
    if (!bench.Check(fetcher.ok(), fetcher.status().ToString())) return;
    const auto started = (*fetcher)->Hear(kPatience);
    if (!bench.Check(started.ok(), started.status().ToString()) ||
        !bench.Check(started->at("error") == "", started->at("error")))
      return;
    // As long as the bytes take: the fetcher counts them, we only guess when they are through.
    const double start = NowMicros();
    const double least_us = static_cast<double>(fetched) / 2.0e3;  // at 2 GB/s
    const std::vector<double> beside =
        Acquires(bench, last, small, acquires, [&] { return NowMicros() - start < least_us; });
    const auto ended = (*fetcher)->Ask("stop", kPatience);
    if (!bench.Check(ended.ok(), ended.status().ToString()) || alone.empty() || beside.empty())
      return;
    const double bytes = ended->at("bytes");
    bench.Check(ended->at("error") == "", ended->at("error"));
    bench.Judge({.name = absl::StrCat("acquire 2048 beside a fetch of ", BytesText(bytes), ", ",
                                      sessions + 1, " sessions, ", mapped, " mapped"),
                 .ours = "p99 " + MicrosText(Quantile(beside, 0.99)),
                 .reference = "alone p99 " + MicrosText(Quantile(alone, 0.99)),
                 .seen = Quantile(beside, 0.99) / Quantile(alone, 0.99),
                 .limit = 3,
                 .runs = beside.size(),
                 .spread_percent = SpreadPercent(beside)});
    bench.Add({"beside the fetch",
               {{"fetch_bytes_per_s", bytes * 1e6 / ended->at("us").get<double>()},
                {"alone_p50_us", Quantile(alone, 0.5)},
                {"beside_p50_us", Quantile(beside, 0.5)}}});
  }
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
