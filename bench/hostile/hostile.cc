// hostile: what other clients' worst legal requests cost a quiet one, T2 to T4 of the trust tests.
//
// limits: each request alone, at half of its limit and at the whole of it. beside: a client that
// matches and reads what it stored, beside one process that sends the worst request of a kind again
// and again. crowd: the same beside all attacks at once, a process each; the daemon in a cgroup of
// its RAM budget and 64 MiB, where cgroups can be made.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status.h"
#include "bench/common/daemon_stats.h"
#include "bench/common/families.h"
#include "bench/common/memory_cgroup.h"
#include "bench/common/partner.h"
#include "bench/common/patience.h"
#include "bench/common/process_memory.h"
#include "bench/common/raw_transfer.h"
#include "bench/common/shared_daemon.h"
#include "bench/common/timing.h"
#include "bench/common/workloads.h"
#include "bench/hostile/attacks.h"

namespace prefixd::bench {
namespace {

constexpr uint64_t kRamBytes = kAttackedRamBytes, kRoomBytes = 64 * kMiB;
constexpr uint32_t kQuietTokens = 2'048, kQuietSequences = 16;
constexpr std::chrono::milliseconds kBetweenMatches{2};
constexpr uint64_t kMatchesARead = 50;

std::unique_ptr<SharedDaemon> StartDaemon(Bench& bench) {
  auto daemon = std::make_unique<SharedDaemon>();
  daemon->options = {.directory = bench.directory(),
                     .ram = absl::StrCat(kRamBytes / kMiB, "MiB"),
                     .ssd = "512MiB",
                     .arena = daemon->folder.file("hostile"),
                     .ssd_floor = "0",
                     .flags = {"--log-level", "warning"}};
  auto process = DaemonProcess::Start(daemon->options);
  if (!bench.Check(process.ok(), process.status().ToString())) return nullptr;
  daemon->process = *std::move(process);
  return daemon;
}

// --- limits ---

// The least of a few times, us; below 0 when it was refused.
double LeastMicros(Bench& bench, const SizedRequest& request, Attacker& attacker, double share,
                   uint64_t runs) {
  if (request.prepare != nullptr) {
    const absl::Status status = request.prepare(attacker, share);
    if (!bench.Check(status.ok(), absl::StrCat(request.name, ": ", status.ToString()))) return -1;
  }
  double least = -1;
  for (uint64_t i = 0; i < runs; ++i) {
    const double start = NowMicros();
    const absl::Status status = request.send(attacker, share);
    const double us = NowMicros() - start;
    if (!bench.Check(status.ok(), absl::StrCat(request.name, ": ", status.ToString()))) return -1;
    least = least < 0 ? us : std::min(least, us);
  }
  return least;
}

void Limits(Bench& bench) {
  const uint64_t runs = bench.Parameter("limits_runs", 1, 5, 9);
  const auto daemon = StartDaemon(bench);
  if (daemon == nullptr) return;
  auto attacker = Attacker::Start(daemon->process->address(), 1);
  if (!bench.Check(attacker.ok(), attacker.status().ToString())) return;
  for (const SizedRequest& request : SizedRequests()) {
    const double half = LeastMicros(bench, request, **attacker, 0.45, runs);
    const double whole = LeastMicros(bench, request, **attacker, 0.9, runs);
    if (half < 0 || whole < 0) continue;
    bench.Judge({.name = absl::StrCat("T2 ", request.name, ", twice as large"),
                 .ours = MicrosText(whole),
                 .reference = MicrosText(half),
                 .seen = whole / half,
                 .limit = 2.5,
                 .runs = runs});
  }
}

// --- crowd ---

// Matches, and now and then reads, what it stored; counts what is not as before.
class QuietClient {
 public:
  explicit QuietClient(Bench& bench)
      : bench_(bench), source_({.model = "quiet", .layers = 2, .kv_heads = 2, .dim = 128}) {}

  bool Store(const std::string& address) {
    auto session =
        RawSession::Open({.address = address, .name = "quiet", .staging_bytes = 8 * kMiB});
    if (!bench_.Check(session.ok(), session.status().ToString())) return false;
    session_ = *std::move(session);
    const auto space = session_->OpenSpace(source_.identity());
    if (!bench_.Check(space.ok(), space.status().ToString())) return false;
    for (uint64_t i = 0; i < kQuietSequences; ++i) {
      sequences_.push_back(MakeSequence(*space, i + 1, kQuietTokens));
      const absl::Status stored = StoreStaged(*session_, source_, sequences_.back());
      if (!bench_.Check(stored.ok(), stored.ToString())) return false;
    }
    return true;
  }
  // us of each Match, for so long.
  std::vector<double> Match(DaemonProcess& daemon, std::chrono::seconds time) {
    std::vector<double> us;
    const auto end = std::chrono::steady_clock::now() + time;
    for (auto next = std::chrono::steady_clock::now(); next < end; next += kBetweenMatches) {
      std::this_thread::sleep_until(next);
      us.push_back(MatchOnce(sequences_[us.size() % sequences_.size()]));
      if (us.size() % kMatchesARead != 0) continue;
      if (std::chrono::steady_clock::now() > end || !daemon.Running()) break;
      Read(sequences_[reads_ % sequences_.size()]);  // Match does not count as a use
    }
    return us;
  }
  uint64_t reads() const { return reads_; }
  uint64_t shorter() const { return shorter_; }  // matches and reads that found less than all
  const std::string& first_wrong() const { return first_wrong_; }

 private:
  double MatchOnce(const RawSequence& sequence) {
    v1::AcquireReply reply;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const v1::AcquireRequest request = AcquireOf(*session_, sequence);
    const double start = NowMicros();
    const grpc::Status status = session_->stub().Match(&context, request, &reply);
    const double us = NowMicros() - start;
    const bool whole = status.ok() && reply.answers_size() == 1 &&
                       reply.answers(0).restorable_tokens() == sequence.tokens.size();
    if (!whole) Wrong(status.ok() ? "match: " + reply.ShortDebugString() : status.error_message());
    return us;
  }
  void Read(const RawSequence& sequence) {
    v1::Answer answer;
    const absl::Status status = AcquireAndCompare(*session_, source_, sequence, &answer);
    if (!status.ok()) Wrong(status.ToString());
    bench_.Check(!absl::IsDataLoss(status), status.ToString());
    if (answer.lease() != 0) (void)session_->Release({answer.lease()});
    ++reads_;
  }
  void Wrong(const std::string& what) {
    if (++shorter_ == 1) first_wrong_ = what;
  }

  Bench& bench_;
  const PageSource source_;
  std::unique_ptr<RawSession> session_;
  std::vector<RawSequence> sequences_;
  uint64_t reads_ = 0, shorter_ = 0;
  std::string first_wrong_;
};

class Crowd {
 public:
  // Attacks of these numbers.
  bool Start(Bench& bench, const std::string& address, size_t begin, size_t end) {
    begin_ = begin;
    for (size_t i = begin; i < end; ++i) {
      auto partner =
          Partner::Start("hostile-client", {{"address", address}, {"attack", i}, {"seed", i + 10}});
      if (!bench.Check(partner.ok(), partner.status().ToString())) return false;
      partners_.push_back(*std::move(partner));
    }
    return true;
  }
  void Stop(Bench& bench) {
    for (const auto& partner : partners_) partner->Say("stop");
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (size_t i = 0; i < partners_.size(); ++i) {
      const Attack& attack = Attacks()[begin_ + i];
      const auto left =
          std::chrono::duration_cast<std::chrono::seconds>(end - std::chrono::steady_clock::now());
      const auto told = partners_[i]->Hear(std::max(left, std::chrono::seconds(1)));
      if (!bench.Check(told.ok(), absl::StrCat(attack.name, ": ", told.status().ToString()))) {
        continue;
      }
      bench.Add({absl::StrCat("attack: ", attack.name),
                 {{"rounds", told->at("rounds")},
                  {"refused", told->at("refused")},
                  {"slowest_us", told->at("slowest_us")}}});
      const std::string& error = told->at("last_error").get_ref<const std::string&>();
      if (!error.empty()) bench.Note(absl::StrCat(attack.name, ": ", error.substr(0, 200)));
    }
    partners_.clear();
  }

 private:
  size_t begin_ = 0;
  std::vector<std::unique_ptr<Partner>> partners_;
};

void JudgeMatches(Bench& bench, const char* attack, const std::vector<double>& alone,
                  const std::vector<double>& beside) {
  const struct {
    const char* name;
    double q, limit_ms;
  } limits[] = {{"p99.9", 0.999, 5}, {"max", 1, 20}};
  for (const auto& limit : limits) {
    bench.Judge({.name = absl::StrCat("T2 match beside ", attack, ", ", limit.name),
                 .ours = MicrosText(Quantile(beside, limit.q)),
                 .reference = "alone " + MicrosText(Quantile(alone, limit.q)),
                 .measure = "time",
                 .seen = Quantile(beside, limit.q) / 1e3,
                 .limit = limit.limit_ms,
                 .unit = " ms",
                 .runs = beside.size(),
                 .spread_percent = SpreadPercent(beside)});
  }
}

void AddHolds(Bench& bench, const v1::GetStatsReply& stats) {
  for (const v1::Count& count : stats.counters()) {
    if (count.name().rfind("longest_hold_us.", 0) != 0) continue;
    bench.Add({absl::StrCat("mutex of ", count.name().substr(16)),
               {{"longest_hold_us", static_cast<double>(count.value())}}});
  }
}

// The attacks that send the worst request of a verb: the first ones.
void RunBeside(Bench& bench) {
  const std::chrono::seconds seconds(bench.Parameter("beside_seconds", 1, 4, 10));
  for (size_t i = 0; i < SizedRequests().size(); ++i) {
    const auto daemon = StartDaemon(bench);
    if (daemon == nullptr) return;
    QuietClient quiet(bench);
    if (!quiet.Store(daemon->process->address())) return;
    const std::vector<double> alone = quiet.Match(*daemon->process, seconds);
    Crowd one;
    if (!one.Start(bench, daemon->process->address(), i, i + 1)) return;
    const std::vector<double> beside = quiet.Match(*daemon->process, seconds);
    one.Stop(bench);
    JudgeMatches(bench, Attacks()[i].name, alone, beside);
  }
}

void RunCrowd(Bench& bench) {
  const std::chrono::seconds seconds(
      bench.seconds() > 0 ? bench.seconds() : bench.Parameter("hostile_seconds", 1, 20, 60));
  const auto cgroup = MemoryCgroup::Make(kRamBytes + kRoomBytes);
  if (!cgroup.ok()) bench.Note("memory is sampled: " + std::string(cgroup.status().message()));
  if (cgroup.ok() && !bench.Check((*cgroup)->Enter().ok(), "cgroup: cannot enter it")) return;
  const auto daemon = StartDaemon(bench);
  if (cgroup.ok()) bench.Check((*cgroup)->Leave().ok(), "cgroup: cannot leave it");
  if (daemon == nullptr) return;
  QuietClient quiet(bench);
  if (!quiet.Store(daemon->process->address())) return;
  const std::vector<double> alone =
      quiet.Match(*daemon->process, std::min(seconds, std::chrono::seconds(10)));
  Crowd crowd;
  if (!crowd.Start(bench, daemon->process->address(), 0, Attacks().size())) return;
  const std::vector<double> beside = quiet.Match(*daemon->process, seconds);
  const double peak = static_cast<double>(AllocatedBytes(daemon->process->pid()));
  DaemonStats stats(daemon->process->address());
  const auto seen = stats.Get();
  crowd.Stop(bench);
  if (!daemon->process->Running()) {
    bench.Check(false,
                absl::StrCat("the daemon ended by itself, ", daemon->process->HowItEnded(),
                             ", kills by memory: ", cgroup.ok() ? (*cgroup)->oom_kills() : 0));
    return;
  }
  // No target: fifteen processes share the cores, and the kernel decides who gets one.
  bench.Add({"match beside all attacks",
             {{"p50_us", Quantile(beside, 0.5)},
              {"p999_us", Quantile(beside, 0.999)},
              {"max_us", Quantile(beside, 1)},
              {"alone_p999_us", Quantile(alone, 0.999)}}});
  bench.Judge({.name = "T4 hits of the quiet client that became shorter",
               .ours = absl::StrCat(beside.size(), " matches, ", quiet.reads(), " reads"),
               .measure = "shorter",
               .seen = static_cast<double>(quiet.shorter()),
               .limit = 0,
               .runs = 1});
  if (quiet.shorter() > 0) bench.Note("the first one: " + quiet.first_wrong());
  if (cgroup.ok()) {
    bench.Judge({.name = "T3 kills by memory in a cgroup of the RAM budget and 64 MiB",
                 .ours = "peak " + BytesText(static_cast<double>((*cgroup)->peak_bytes())) +
                         " with page cache",
                 .measure = "kills",
                 .seen = static_cast<double>((*cgroup)->oom_kills()),
                 .limit = 0,
                 .runs = 1});
  }
  bench.Judge({.name = "T3 resident memory, of the RAM budget and 64 MiB",
               .ours = BytesText(peak),
               .seen = peak / static_cast<double>(kRamBytes + kRoomBytes),
               .limit = 1,
               .runs = 1});
  if (seen.ok()) AddHolds(bench, *seen);
}

}  // namespace

void RunHostile(Bench& bench) {
  RunFamilies(bench, {{"limits", [&] { Limits(bench); }},
                      {"beside", [&] { RunBeside(bench); }},
                      {"crowd", [&] { RunCrowd(bench); }}});
}

}  // namespace prefixd::bench
