// prefixctl doctor on hosts that are made up: folders in place of /proc and /sys.
#include "client/cli/doctor.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/version.h"
#include "tests/cli/samples.h"

namespace prefixd::cli {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "prefixd_host_XXXXXX").string();
    host_.root = mkdtemp(pattern.data());
    Write("/proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapTotal: 0 kB\n");
    Write("/proc/cpuinfo", "processor : 0\nflags : fpu avx2 avx512bw amx_tile\n");
    Write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    Write("/proc/self/cgroup", "0::/a/b\n");
    Write("/proc/self/limits", "Max open files            65536   65536   files\n");
    Write("/proc/self/mountinfo",
          "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
          "25 22 0:23 / /dev/shm rw - tmpfs tmpfs rw,huge=within_size\n");
    Write("/sys/fs/cgroup/a/memory.max", "max\n");
    Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [never] deny force\n");
    std::filesystem::create_directories(host_.root + "/dev/shm");
    std::filesystem::create_directories(host_.root + "/var/lib/prefixd");
    host_.spaces["/dev/shm"] = {.bytes = 8 * kGiB, .free_bytes = 8 * kGiB, .is_tmpfs = true};
    host_.spaces["/var/lib/prefixd"] = {.bytes = 100 * kGiB, .free_bytes = 50 * kGiB};
    Set("directory", "/var/lib/prefixd");
    Set("arena", "/dev/shm/prefixd-1.arena");
    Set("ssd-floor", "10GiB");
    Set("direct-io", "off");
    stats_.set_version(kVersion);
    stats_.set_ram_budget_bytes(4 * kGiB);
    stats_.set_ssd_budget_bytes(20 * kGiB);
    stats_.mutable_arena()->set_shared(true);
    AddCount("arena", 3 * kGiB, stats_.mutable_ram_shares());
  }
  ~DoctorTest() override { std::filesystem::remove_all(host_.root); }
  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(host_.root + path).parent_path());
    std::ofstream(host_.root + path) << text;
  }
  void Set(const std::string& name, const std::string& value) {
    v1::GetConfigReply::Setting* setting = config_.add_settings();
    setting->set_name(name);
    setting->set_value(value);
  }
  void Attach(const std::string& library) {
    v1::ListSessionsReply::Session* const session = sessions_.add_sessions();
    session->set_attached(true);
    session->set_library(library);
  }
  DaemonView View() const {
    return {.address = "unix:///run/prefixd/prefixd.sock",
            .config = config_,
            .stats = stats_,
            .sessions = sessions_,
            .own_version = kVersion};
  }
  std::vector<Finding> Findings() const { return Examine(host_, View()); }
  Finding Find(const std::string& name) const {
    for (const Finding& finding : Findings()) {
      if (finding.name == name) return finding;
    }
    ADD_FAILURE() << "no finding " << name << "\n" << DoctorView(Findings());
    return {};
  }
  // What the only finding that is not fine says.
  Finding Only() const {
    std::vector<Finding> findings = Findings();
    std::erase_if(findings, [](const Finding& one) { return one.verdict == Verdict::kFine; });
    EXPECT_EQ(findings.size(), 1u) << DoctorView(findings);
    return findings.empty() ? Finding() : findings.front();
  }
  Host host_;
  v1::GetConfigReply config_;
  v1::GetStatsReply stats_;
  v1::ListSessionsReply sessions_;
};

TEST_F(DoctorTest, AGoodHostHasNothingToChange) {
  for (const Finding& finding : Findings()) {
    EXPECT_EQ(finding.verdict, Verdict::kFine) << finding.name << ": " << finding.found;
  }
  EXPECT_FALSE(AnyWrong(Findings()));
  EXPECT_THAT(DoctorView(Findings()), HasSubstr("AVX2, AVX-512, AMX"));
  EXPECT_THAT(DoctorView(Findings()), HasSubstr("\nnothing to change\n"));
}

TEST_F(DoctorTest, ASmallTmpfsIsToldWithTheSizeThatItShouldHave) {
  host_.spaces["/dev/shm"] = {.bytes = kGiB, .free_bytes = kGiB, .is_tmpfs = true};
  EXPECT_EQ(Only().verdict, Verdict::kBetter);
  EXPECT_THAT(Only().change, HasSubstr("give the tmpfs 3.2 GiB"));
  host_.spaces["/dev/shm"].is_tmpfs = false;
  EXPECT_THAT(Only().found, HasSubstr("is no tmpfs"));
  EXPECT_EQ(Only().verdict, Verdict::kWrong);
}

TEST_F(DoctorTest, WithoutHugePagesTheMountIsNamed) {
  Write("/proc/self/mountinfo", "25 22 0:23 / /dev/shm rw - tmpfs tmpfs rw,size=1g\n");
  EXPECT_EQ(Only().name, "huge pages");
  EXPECT_THAT(Only().change, HasSubstr("huge=within_size"));
  Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always never deny [force]\n");
  EXPECT_EQ(Find("huge pages").verdict, Verdict::kFine);
  Write("/proc/self/mountinfo", "25 22 0:23 / /dev/shm rw - tmpfs tmpfs rw,huge=within_size\n");
  Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always never [deny] force\n");
  EXPECT_EQ(Find("huge pages").verdict, Verdict::kBetter);
}

TEST_F(DoctorTest, ACgroupThatWouldKillPrefixdIsWrongAtAnyLevel) {
  Write("/sys/fs/cgroup/a/memory.max", "4294967296\n");
  EXPECT_EQ(Only().verdict, Verdict::kWrong);
  EXPECT_THAT(Only().found, HasSubstr("memory limit of 4.0 GiB, prefixd may take 4.1 GiB"));
  EXPECT_TRUE(AnyWrong(Findings()));
  Write("/sys/fs/cgroup/a/memory.max", "8589934592\n");
  EXPECT_FALSE(AnyWrong(Findings()));
  Write("/proc/self/cgroup", "7:cpu,memory:/v1\n");
  Write("/proc/self/cgroup", "7:memory:/v1\n");
  Write("/sys/fs/cgroup/memory/v1/memory.limit_in_bytes", "1073741824\n");
  EXPECT_TRUE(AnyWrong(Findings()));
}

TEST_F(DoctorTest, ADiskBelowTheFloorIsToldAndBelowHalfOfItIsWrong) {
  host_.spaces["/var/lib/prefixd"].free_bytes = 8 * kGiB;
  EXPECT_EQ(Only().verdict, Verdict::kBetter);
  host_.spaces["/var/lib/prefixd"].free_bytes = 4 * kGiB;
  EXPECT_EQ(Only().verdict, Verdict::kWrong);
  EXPECT_THAT(Only().change, HasSubstr("below half of --ssd-floor (10.0 GiB)"));
}

TEST_F(DoctorTest, AnSsdBudgetThatTheDiskHasNoRoomForIsTold) {
  stats_.set_ssd_file_bytes(15 * kGiB);
  host_.spaces["/var/lib/prefixd"].free_bytes = 15 * kGiB;  // 5 above the floor, 15 taken
  EXPECT_EQ(Find("/var/lib/prefixd").verdict, Verdict::kFine);
  stats_.set_ssd_budget_bytes(500 * kGiB);
  EXPECT_EQ(Only().verdict, Verdict::kBetter);
  EXPECT_THAT(Only().change, HasSubstr("SSD budget of 500.0 GiB: above --ssd-floor (10.0 GiB) the "
                                       "disk has 20.0 GiB for it"));
}

TEST_F(DoctorTest, AClockThatWentBackIsWrong) {
  Write("/var/lib/prefixd/LOG", "");
  EXPECT_EQ(Find("clock").verdict, Verdict::kFine);
  const timespec future[2] = {{4'102'444'800, 0}, {4'102'444'800, 0}};  // the year 2100
  ASSERT_EQ(utimensat(AT_FDCWD, (host_.root + "/var/lib/prefixd/LOG").c_str(), future, 0), 0);
  EXPECT_EQ(Only().name, "clock");
  EXPECT_EQ(Only().verdict, Verdict::kWrong);
}

TEST_F(DoctorTest, FewOpenFilesAnOldKernelSwapAndAnOldProcessorAreTold) {
  Write("/proc/self/limits", "Max open files            1024   4096   files\n");
  EXPECT_EQ(Only().name, "open files");
  Write("/proc/self/limits", "Max open files            256   4096   files\n");
  EXPECT_EQ(Only().verdict, Verdict::kWrong);
  Write("/proc/self/limits", "Max open files            unlimited   unlimited   files\n");
  Write("/proc/sys/kernel/osrelease", "5.10.0\n");
  EXPECT_EQ(Only().name, "kernel");
  Write("/proc/sys/kernel/osrelease", "5.14.0\n");
  Write("/proc/meminfo", "MemAvailable: 16777216 kB\nSwapTotal: 1048576 kB\n");
  EXPECT_THAT(Only().found, HasSubstr("1.0 GiB: the arena's pages may go there"));
  Write("/proc/meminfo", "MemAvailable: 16777216 kB\nSwapTotal: 0 kB\n");
  Write("/proc/cpuinfo", "flags : fpu sse4_2\n");
  EXPECT_EQ(Only().found, "no AVX2, no AVX-512, no AMX");
}

TEST_F(DoctorTest, ASocketThatEveryUserMayWriteToIsWrong) {
  Write("/run/prefixd/prefixd.sock", "");
  const std::string socket = host_.root + "/run/prefixd/prefixd.sock";
  ASSERT_EQ(chmod(socket.c_str(), 0660), 0);
  EXPECT_FALSE(AnyWrong(Findings()));
  ASSERT_EQ(chmod(socket.c_str(), 0666), 0);
  EXPECT_EQ(Only().verdict, Verdict::kWrong);
  EXPECT_THAT(Only().change, HasSubstr("chmod o-w /run/prefixd/prefixd.sock"));
}

TEST_F(DoctorTest, WhatPrefixdKnowsToBeWrongIsToldAndAnotherVersion) {
  AddCount("ssd.failing", 1, stats_.mutable_counters());
  EXPECT_EQ(Only().found, "writes fail");
  stats_.mutable_counters()->Clear();
  stats_.set_version("0.0.9");
  EXPECT_THAT(Only().change, HasSubstr("restart prefixd"));
}

TEST_F(DoctorTest, ACallerOfOneTenantIsToldThatNothingCanBeExaminedAndNoGuess) {
  const std::string version = stats_.version();
  stats_.Clear();
  stats_.set_version(version);
  const std::vector<Finding> findings = Findings();
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(Find("prefixd").verdict, Verdict::kFine);
  EXPECT_EQ(Find("budgets, settings").verdict, Verdict::kUnknown);
  EXPECT_FALSE(AnyWrong(findings));
}

TEST_F(DoctorTest, WhatIsWrongComesFirstThenWhatIsWorthMost) {
  Write("/proc/meminfo", "MemAvailable: 16777216 kB\nSwapTotal: 1048576 kB\n");
  host_.spaces["/dev/shm"].free_bytes = kGiB;
  host_.spaces["/var/lib/prefixd"].free_bytes = kGiB;
  const std::vector<Finding> findings = Findings();
  ASSERT_GE(findings.size(), 4u);
  EXPECT_EQ(findings[0].name, "/var/lib/prefixd");
  EXPECT_EQ(findings[1].name, "/dev/shm");
  EXPECT_EQ(findings[2].name, "swap");
  EXPECT_TRUE(findings[3].change.empty());
  EXPECT_THAT(DoctorView(findings), HasSubstr("3 changes, what is worth most first"));
}

TEST_F(DoctorTest, EnginesOfWorkersAreCountedAndLibrariesOfAnotherVersionNamed) {
  for (int i = 0; i < 2; ++i) Attach("prefixd-cpp/0.1.0 (vllm 0.32.0)");
  Attach("prefixd-cpp/0.1.0");
  const Finding same = Find("workers");
  EXPECT_EQ(same.verdict, Verdict::kFine);
  EXPECT_EQ(same.found, "1 of prefixd-cpp/0.1.0, 2 of prefixd-cpp/0.1.0 (vllm 0.32.0)");
  Attach("prefixd-cpp/0.0.9 (mlx-lm 0.32.2)\x1b");
  const Finding other = Find("workers");
  EXPECT_EQ(other.verdict, Verdict::kBetter);
  EXPECT_THAT(other.found, HasSubstr("1 of prefixd-cpp/0.0.9 (mlx-lm 0.32.2)?"));
  EXPECT_THAT(other.change, HasSubstr("prefixd is 0.1.0: install the same client library"));
}

TEST_F(DoctorTest, TheDiskIsMeasuredOnDemandAndNothingIsLeftOnIt) {
  const auto measured = [this]() -> Finding {
    const std::vector<Finding> findings = Examine(host_, View(), /*disk=*/true);
    const auto found = std::ranges::find(findings, "disk speed", &Finding::name);
    return found == findings.end() ? Finding{} : *found;
  };
  const std::filesystem::path folder = host_.root + "/var/lib/prefixd";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(measured().verdict, Verdict::kUnknown);
  std::filesystem::create_directories(folder);
  EXPECT_THAT(measured().found, AllOf(HasSubstr("writes "), HasSubstr("/s and reads ")));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  Set("ssd-write-rate", "900TiB");
  EXPECT_EQ(measured().verdict, Verdict::kBetter);
  EXPECT_THAT(measured().change, AnyOf(HasSubstr("900.0 TiB/s is more than it takes"),
                                       HasSubstr("put --directory on a faster disk")));
  for (const Finding& finding : Findings()) EXPECT_NE(finding.name, "disk speed");
}

TEST_F(DoctorTest, WithoutADaemonTheDefaultsAreLookedAt) {
  const absl::Status away = absl::UnavailableError("no");
  const std::vector<Finding> findings =
      Examine(host_, {.address = "unix:///run/prefixd/prefixd.sock",
                      .config = away,
                      .stats = away,
                      .sessions = away,
                      .own_version = kVersion});
  EXPECT_FALSE(AnyWrong(findings)) << DoctorView(findings);
  EXPECT_THAT(DoctorView(findings), HasSubstr("does not answer at unix:///run/prefixd"));
  Write("/run/prefixd/prefixd.sock.lock", "");
  EXPECT_TRUE(AnyWrong(Examine(host_, {.address = "unix:///run/prefixd/prefixd.sock",
                                       .config = away,
                                       .stats = away,
                                       .sessions = away,
                                       .own_version = kVersion})));
}

TEST(DoctorVersionTest, TheProgramsAreOfTheVersionOfThePackage) {
  EXPECT_STREQ(kVersion, PREFIXD_PACKAGE_VERSION);
}

}  // namespace
}  // namespace prefixd::cli
