#include "tests/crash/loop.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status.h"
#include "bench/common/child_process.h"
#include "bench/common/daemon_process.h"
#include "bench/common/daemon_stats.h"
#include "bench/common/partner.h"
#include "bench/common/timing.h"
#include "tests/crash/load.h"

namespace prefixd::bench {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kPatience{60};

// Asks every millisecond. DeadlineExceeded naming what was waited for.
template <typename Condition>
absl::Status WaitFor(const std::string& what, Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("waited too long for ", what));
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return absl::OkStatus();
}

Leaks LeaksIn(const v1::GetStatsReply& stats) {
  uint64_t page_bytes = 0;
  for (const v1::SpaceStats& space : stats.spaces()) page_bytes += space.ram_extent_bytes();
  const uint64_t extents = CounterOf(stats, "arena.extent_bytes");
  return {.sessions = stats.sessions(),
          .leases = stats.leases(),
          .leased_bytes = stats.leased_bytes(),
          .reservations = stats.reservations(),
          .staging_bytes = RamPartOf(stats, "staging"),
          .extent_bytes = extents > page_bytes ? extents - page_bytes : page_bytes - extents};
}

// A daemon and its workers, both to be killed.
class Scene {
 public:
  explicit Scene(const CrashOptions& options) : options_(options), random_(options.seed) {}

  absl::Status Start() {
    PREFIXD_ASSIGN_OR_RETURN(SharedCounts counts,
                             SharedCounts::Map(options_.directory + "/counts"));
    counts_ = std::make_unique<SharedCounts>(std::move(counts));
    PREFIXD_RETURN_IF_ERROR(StartDaemon());
    workers_.resize(options_.workers);
    for (std::unique_ptr<Partner>& worker : workers_) {
      PREFIXD_RETURN_IF_ERROR(StartWorker(&worker));
    }
    return absl::OkStatus();
  }

  absl::Status ExecDaemon() {
    const DaemonProcess::Options options{
        .directory = options_.directory,
        .ram = "64MiB",
        .ssd = "256MiB",
        .arena = options_.arena,
        .flags = {"--segment-bytes", "4MiB", "--log-level", "warning"}};
    PREFIXD_ASSIGN_OR_RETURN(daemon_, DaemonProcess::Exec(options));
    return absl::OkStatus();
  }
  absl::Status StartDaemon() {
    const double start = NowMicros();
    PREFIXD_RETURN_IF_ERROR(ExecDaemon());
    PREFIXD_RETURN_IF_ERROR(daemon_->WaitListening());
    slowest_start_us_ = std::max(slowest_start_us_, NowMicros() - start);
    return absl::OkStatus();
  }
  absl::Status StartWorker(std::unique_ptr<Partner>* worker) {
    PREFIXD_ASSIGN_OR_RETURN(
        *worker, Partner::StartProgram({ThisProgram(), kCrashWorker,
                                        nlohmann::json{{"address", daemon_->address()},
                                                       {"counts", options_.directory + "/counts"},
                                                       {"seed", random_()}}
                                            .dump()}));
    return absl::OkStatus();
  }
  // Until the workers have done `operations` more.
  absl::Status Work(uint64_t operations) {
    const uint64_t target = (*counts_)->operations + operations;
    return WaitFor("the workers to get on", [&] { return (*counts_)->operations >= target; });
  }
  absl::Status StopWorkers() {
    for (const std::unique_ptr<Partner>& worker : workers_) worker->Say("stop");
    for (const std::unique_ptr<Partner>& worker : workers_) {
      PREFIXD_RETURN_IF_ERROR(WaitFor("a worker to stop", [&] { return !worker->Running(); }));
    }
    return absl::OkStatus();
  }
  // Until nothing is held, as far as it comes.
  absl::StatusOr<Leaks> WaitForNothing(double* us) {
    DaemonStats stats(daemon_->address());
    const double start = NowMicros();
    Leaks leaks;
    const absl::Status waited = WaitFor("leases to go", [&] {
      absl::StatusOr<v1::GetStatsReply> seen = stats.Get();
      if (seen.ok()) leaks = LeaksIn(*seen);
      return seen.ok() && leaks.total() == 0;
    });
    if (us != nullptr) *us = NowMicros() - start;
    if (!waited.ok() && leaks.total() == 0) return waited;  // it does not answer
    return leaks;
  }
  CrashWork work() const {
    const CrashCounts& seen = **counts_;
    return {.operations = seen.operations,
            .requested_tokens = seen.requested_tokens,
            .cached_tokens = seen.cached_tokens,
            .in_place_tokens = seen.in_place_tokens,
            .committed_tokens = seen.committed_tokens,
            .refused = seen.refused,
            .outlived = seen.outlived,
            .wrong = seen.wrong,
            .first_wrong = seen.first_wrong};
  }
  absl::Status CheckWorkers() {
    for (const std::unique_ptr<Partner>& worker : workers_) {
      if (!worker->Running()) return absl::InternalError("a worker ended by itself");
    }
    return absl::OkStatus();
  }

  DaemonProcess& daemon() { return *daemon_; }
  std::vector<std::unique_ptr<Partner>>& workers() { return workers_; }
  std::mt19937_64& random() { return random_; }
  double slowest_start_us() const { return slowest_start_us_; }
  void CountWrong(uint64_t wrong) { (*counts_)->wrong += wrong; }

 private:
  const CrashOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<SharedCounts> counts_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::vector<std::unique_ptr<Partner>> workers_;
  double slowest_start_us_ = 0;
};

struct Resident {
  uint64_t tokens = 0;  // restorable, over the universe
  uint64_t ram_bytes = 0;
  uint64_t wrong = 0;
};

// Looks every sequence of the universe up; `read`: and compares what comes.
absl::StatusOr<Resident> CountResident(const std::string& address, bool read) {
  Client client({.address = address, .name = "crash-check"});
  if (!client.WaitAttached(kPatience)) return absl::UnavailableError("prefixd does not answer");
  Result<Space> space = client.OpenSpace(SpecOf(CrashGeometry()));
  if (!space.ok()) return absl::InternalError(space.status.message);
  const ForkedPattern pattern(CrashGeometry());
  Resident resident;
  for (const ForkedName& name : CrashUniverse()) {
    const std::vector<uint32_t> tokens = TokensOf(name);
    const Result<MatchInfo> match = space.value().Match(tokens, {.deadline = kPatience});
    if (!match.ok()) return absl::InternalError(match.status.message);
    resident.ram_bytes += match.value().ram_bytes;
    if (!read) {
      resident.tokens += match.value().restorable_tokens;
      continue;
    }
    Sequence sequence = space.value().Begin(
        tokens, {.deadline = kPatience, .load_deadline = kPatience, .announce = false});
    const uint32_t usable = sequence.WaitAll();
    resident.tokens += usable;
    if (!pattern.Matches(name, usable, sequence)) ++resident.wrong;
    sequence.Release({.used_tokens = usable});
  }
  return resident;
}

// One kill, and the daemon after it. One in five dies again while it starts.
absl::Status KillDaemon(Scene& scene, CrashReport* report) {
  PREFIXD_RETURN_IF_ERROR(scene.Work(1 + scene.random()() % 12));
  // A point inside an operation rather than at its end.
  std::this_thread::sleep_for(std::chrono::microseconds(scene.random()() % 3000));
  PREFIXD_RETURN_IF_ERROR(scene.CheckWorkers());
  if (!scene.daemon().Kill()) return absl::InternalError("prefixd ended by itself");
  ++report->kills;
  if (scene.random()() % 5 == 0) {
    PREFIXD_RETURN_IF_ERROR(scene.ExecDaemon());
    std::this_thread::sleep_for(std::chrono::microseconds(scene.random()() % 60'000));
    if (!scene.daemon().Kill()) return absl::InternalError("prefixd does not start");
    ++report->kills;
    ++report->killed_while_starting;
  }
  return scene.StartDaemon();
}

}  // namespace

std::string ToText(const Leaks& leaks) {
  return absl::StrCat(leaks.sessions, " sessions, ", leaks.leases, " leases of ",
                      leaks.leased_bytes, " bytes, ", leaks.reservations, " reservations, ",
                      leaks.staging_bytes, " bytes of staging, ", leaks.extent_bytes,
                      " bytes of extents");
}

absl::StatusOr<CrashReport> RunCrashLoop(const CrashOptions& options) {
  Scene scene(options);
  CrashReport report;
  PREFIXD_RETURN_IF_ERROR(scene.Start());
  PREFIXD_RETURN_IF_ERROR(scene.Work(40));  // something to lose
  while (report.kills < options.kills) PREFIXD_RETURN_IF_ERROR(KillDaemon(scene, &report));
  PREFIXD_RETURN_IF_ERROR(scene.Work(40));
  PREFIXD_RETURN_IF_ERROR(scene.StopWorkers());
  PREFIXD_ASSIGN_OR_RETURN(report.leaks, scene.WaitForNothing(nullptr));
  PREFIXD_ASSIGN_OR_RETURN(const Resident before,
                           CountResident(scene.daemon().address(), /*read=*/false));
  if (!scene.daemon().Kill()) return absl::InternalError("prefixd ended by itself");
  ++report.kills;
  PREFIXD_RETURN_IF_ERROR(scene.StartDaemon());
  PREFIXD_ASSIGN_OR_RETURN(const Resident in_ram,
                           CountResident(scene.daemon().address(), /*read=*/false));
  PREFIXD_ASSIGN_OR_RETURN(const Resident after,
                           CountResident(scene.daemon().address(), /*read=*/true));
  scene.CountWrong(after.wrong);
  report.work = scene.work();
  report.resident_tokens = before.tokens;
  report.hit_tokens = after.tokens;
  report.ram_bytes = before.ram_bytes;
  report.ram_bytes_after = in_ram.ram_bytes;
  report.slowest_start_us = scene.slowest_start_us();
  return report;
}

absl::StatusOr<DeathReport> RunWorkerDeaths(const CrashOptions& options) {
  constexpr uint64_t kBetweenChecks = 100;
  uint64_t next_check = kBetweenChecks;
  Scene scene(options);
  DeathReport report;
  PREFIXD_RETURN_IF_ERROR(scene.Start());
  PREFIXD_RETURN_IF_ERROR(scene.Work(20));
  while (report.kills < options.kills) {
    std::unique_ptr<Partner>& victim = scene.workers()[scene.random()() % options.workers];
    PREFIXD_RETURN_IF_ERROR(scene.Work(scene.random()() % 3));
    std::this_thread::sleep_for(std::chrono::microseconds(scene.random()() % 3000));
    if (!victim->Running()) return absl::InternalError("a worker ended by itself");
    victim->Kill();
    ++report.kills;
    if (report.kills >= next_check || report.kills >= options.kills) {
      next_check += kBetweenChecks;
      for (std::unique_ptr<Partner>& worker : scene.workers()) {
        report.kills += worker->Running() ? 1 : 0;
        worker->Kill();
      }
      double us = 0;
      PREFIXD_ASSIGN_OR_RETURN(report.leaks, scene.WaitForNothing(&us));
      report.slowest_cleanup_us = std::max(report.slowest_cleanup_us, us);
      if (report.leaks.total() > 0) break;
    }
    for (std::unique_ptr<Partner>& worker : scene.workers()) {
      if (!worker->Running()) PREFIXD_RETURN_IF_ERROR(scene.StartWorker(&worker));
    }
  }
  report.work = scene.work();
  return report;
}

}  // namespace prefixd::bench
