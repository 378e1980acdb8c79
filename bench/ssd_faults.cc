// A disk that damages, forgets, fills up and fails. The first two are the seeded tests of
// tests/model, run for longer: what they count is what they injected, and they are green only if no
// byte was wrong and nothing durable was missing. A full disk is a real one: a small tmpfs.
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

#include "base/status.h"
#include "bench/child_process.h"
#include "bench/ssd.h"
#include "bench/timing.h"

namespace prefixd::bench {
namespace {

constexpr std::chrono::seconds kPatience(30);

double Number(uint64_t value) { return static_cast<double>(value); }

// A run of a test program that stands beside this one.
struct TestRun {
  std::string program, filter;
  std::vector<std::string> environment;  // NAME=value
  std::string count;  // property of the tests that says how much was done; empty: the tests
};
struct TestResult {
  uint64_t tests = 0, red = 0, count = 0;
  std::string kinds;  // of what is counted, where tests say so
};

absl::StatusOr<TestResult> Run(const TestRun& run, const std::string& directory) {
  const std::string program = std::filesystem::path(ThisProgram()).replace_filename(run.program);
  if (!std::filesystem::exists(program)) {
    return absl::NotFoundError(absl::StrCat(program, " is not there: build it"));
  }
  const std::string report = absl::StrCat(directory, "/", run.program, ".json");
  std::vector<std::string> arguments = {"/usr/bin/env"};
  arguments.insert(arguments.end(), run.environment.begin(), run.environment.end());
  for (const std::string& argument :
       {program, "--gtest_filter=" + run.filter, std::string("--gtest_brief=1"),
        "--gtest_output=json:" + report}) {
    arguments.push_back(argument);
  }
  PREFIXD_ASSIGN_OR_RETURN(const pid_t pid,
                           StartProcess({.arguments = arguments,
                                         .out = absl::StrCat(directory, "/", run.program, ".log"),
                                         .errors_too = true}));
  int status = 0;
  ::waitpid(pid, &status, 0);
  const nlohmann::json json = nlohmann::json::parse(ReadText(report), nullptr, false);
  if (!json.is_object()) return absl::InternalError(run.program + " did not come to its end");
  TestResult result{.tests = json.value("tests", uint64_t{0}),
                    .red = json.value("failures", uint64_t{0}),
                    .count = 0,
                    .kinds = {}};
  for (const auto& suite : json.value("testsuites", nlohmann::json::array())) {
    for (const auto& test : suite.value("testsuite", nlohmann::json::array())) {
      result.count += std::strtoull(test.value(run.count, "0").c_str(), nullptr, 10);
      const std::string kinds = test.value("kinds", "");
      result.kinds += (kinds.empty() ? "" : ", ") + kinds;
    }
  }
  if (run.count.empty()) result.count = result.tests;
  return result;
}

void JudgeRun(Bench& bench, const std::string& what, const TestRun& run) {
  const double start = NowMicros();
  const absl::StatusOr<TestResult> result = Run(run, bench.directory());
  if (!bench.Check(result.ok(), result.status().ToString())) return;
  bench.Judge({.name = absl::StrCat(result->count, " ", what),
               .ours = absl::StrCat(result->tests, " seeded tests in ",
                                    MicrosText(NowMicros() - start), result->kinds),
               .reference = run.program + " " + run.filter,
               .measure = "tests with a wrong byte, a missing page or a dead cache",
               .seen = Number(result->red + (result->tests == 0 ? 1 : 0)),
               .limit = 0,
               .runs = result->count});
}

// A file system of so few bytes, unmounted in the end.
class SmallDisk {
 public:
  static absl::StatusOr<std::unique_ptr<SmallDisk>> Mount(const std::string& folder,
                                                          uint64_t bytes) {
    std::filesystem::create_directories(folder);
    auto disk = std::unique_ptr<SmallDisk>(new SmallDisk(folder));
    PREFIXD_RETURN_IF_ERROR(disk->Resize(bytes, 0));
    disk->mounted_ = true;
    return disk;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  absl::Status Grow(uint64_t bytes) { return Resize(bytes, MS_REMOUNT); }

 private:
  explicit SmallDisk(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Resize(uint64_t bytes, unsigned long flags) const {
    const std::string options = absl::StrCat("size=", bytes);
    if (::mount("none", folder_.c_str(), "tmpfs", flags, options.c_str()) == 0) {
      return absl::OkStatus();
    }
    return absl::UnavailableError(absl::StrCat("a tmpfs on ", folder_, ": ", std::strerror(errno)));
  }
  const std::string folder_;
  bool mounted_ = false;
};

// Stores, and reads back what it just stored, until the daemon's word on its disk is `failing`.
struct Served {
  uint64_t commits = 0, bad = 0;
  std::optional<double> us;  // until then
};
absl::StatusOr<Served> ServeUntil(SsdDaemon& daemon, bool failing, uint64_t* number) {
  Served served;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  const double start = NowMicros();
  while (std::chrono::steady_clock::now() < deadline) {
    const RawSequence sequence = daemon.Sequence(++*number, daemon.TokensIn(4 * kMiB));
    ++served.commits;
    v1::Answer answer;
    absl::Status status = daemon.Store(sequence);
    if (status.ok()) {
      status = AcquireAndCompare(daemon.session(), daemon.source(), sequence, &answer);
    }
    if (status.ok()) status = daemon.session().Release({answer.lease()});
    if (!status.ok()) ++served.bad;
    PREFIXD_ASSIGN_OR_RETURN(const uint64_t fails, daemon.Counter("ssd.failing"));
    if ((fails > 0) == failing) {
      served.us = NowMicros() - start;
      break;
    }
  }
  return served;
}

void FullDisk(Bench& bench) {
  const std::string name = "full-disk";
  const std::string folder = absl::StrCat(bench.directory(), "/", name);
  auto disk = SmallDisk::Mount(folder, 96 * kMiB);
  if (!disk.ok()) {
    bench.Note(absl::StrCat("a full disk was not tried: ", std::string(disk.status().message())));
    return;
  }
  const auto daemon = SsdDaemon::Start(bench, {.name = name,
                                               .ram_bytes = 192 * kMiB,
                                               .ssd_bytes = 1024 * kMiB,
                                               .staging_bytes = 8 * kMiB,
                                               .ssd_floor = "0",
                                               .log_level = "off",
                                               .flags = {}});
  if (daemon == nullptr) return;
  uint64_t number = 0;
  const auto full = ServeUntil(*daemon, true, &number);
  if (!bench.Check(full.ok() && full->us.has_value(), "the disk did not become full")) return;
  // On from RAM: ten more times what is stored is read back.
  uint64_t bad = full->bad, commits = full->commits;
  for (int i = 0; i < 10; ++i) {
    const auto more = ServeUntil(*daemon, true, &number);
    if (!bench.Check(more.ok(), more.status().ToString())) return;
    bad += more->bad;
    commits += more->commits;
  }
  const absl::Status grown = (*disk)->Grow(2048 * kMiB);
  if (!bench.Check(grown.ok(), grown.ToString())) return;
  const auto well = ServeUntil(*daemon, false, &number);
  if (!bench.Check(well.ok(), well.status().ToString())) return;
  bad += well->bad;
  commits += well->commits;
  bench.Judge({.name = "full disk: serving goes on from RAM",
               .ours = absl::StrCat(commits, " commits read back in place"),
               .reference = "a tmpfs of 96 MiB, budget 1 GiB",
               .measure = "failed",
               .seen = Number(bad),
               .limit = 0,
               .runs = commits});
  bench.Judge({.name = "full disk: writing again once there is space",
               .ours = well->us.has_value() ? "after " + MicrosText(*well->us) : "never",
               .reference = "the warning stands until then",
               .measure = "seconds",
               .seen = well->us.value_or(1e12) * 1e-6,
               .limit = 10,
               .unit = " s",
               .runs = 1});
  const absl::Status stopped = daemon->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace

void SsdFaults(Bench& bench) {
  const uint64_t corruptions = bench.Parameter("corruptions", 400, 6'000, 100'000);
  const uint64_t cuts = bench.Parameter("cut_points", 10, 120, 2'000);
  JudgeRun(bench, "corruptions injected below and above the checksums",
           {.program = "model_test",
            .filter = "*CorruptionTest.*",
            .environment = {absl::StrCat("PREFIXD_CORRUPTIONS=", corruptions / 2)},
            .count = "corruptions"});
  JudgeRun(bench, "power cuts",
           {.program = "model_test",
            .filter = "CutPointsTest.*",
            .environment = {absl::StrCat("PREFIXD_CUT_POINTS=", cuts)},
            .count = "cuts"});
  JudgeRun(bench, "disks that fail, fill up or are slow",
           {.program = "cache_test", .filter = "FaultsTest.*", .environment = {}, .count = ""});
  FullDisk(bench);
}

}  // namespace prefixd::bench
