// What a stranger meets in the first quarter of an hour, with the real programs.
#include <sys/mount.h>
#include <sys/stat.h>

#include "gmock/gmock.h"

#include "tests/e2e/fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What a program that ends says.
struct Ran {
  int exit_code = 0;
  std::string out, err;
};

class FirstStepsTest : public EndToEndTest {
 protected:
  ~FirstStepsTest() override {
    daemon_.reset();
    if (mounted_) umount2(shm().c_str(), MNT_DETACH);
  }
  static Ran Run(std::vector<std::string> argv) {
    argv[0] = Program(argv[0]);
    Process program(std::move(argv));
    const int code = program.Wait();
    return {code, program.out(), program.err()};
  }
  Ran CtlText(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"prefixctl", "--server", address()});
    return Run(std::move(arguments));
  }
  std::string shm() const { return dir_ + "/shm"; }
  // Mounts a small /dev/shm of our own; needs root.
  bool MountShm(const char* size) {
    std::filesystem::create_directory(shm());
    mounted_ = mount("prefixd-test", shm().c_str(), "tmpfs", 0, size) == 0;
    if (mounted_) arena_ = shm() + "/p.arena";
    return mounted_;
  }
  void Kill() {
    daemon_->Signal(SIGKILL);
    daemon_->Wait();
    daemon_.reset();
  }
  bool mounted_ = false;
};

TEST_F(FirstStepsTest, ASmallTmpfsIsSaidAtTheStartAndInStatus) {
  if (!MountShm("size=64m")) GTEST_SKIP() << "mounting a tmpfs needs root";
  StartDaemon();
  EXPECT_THAT(daemon_->err(), HasSubstr("arena limited by " + shm() + ": 64.0 MiB"));
  EXPECT_THAT(CtlText({"status"}).out, HasSubstr("arena limited by " + shm() + ": 64.0 MiB"));
}

TEST_F(FirstStepsTest, ATmpfsThatOthersFillLaterIsSaidThen) {
  if (!MountShm("size=300m")) GTEST_SKIP() << "mounting a tmpfs needs root";
  StartDaemon();
  EXPECT_THAT(daemon_->err(), Not(HasSubstr("limited")));
  EXPECT_EQ(Ctl({"status"})["arena"]["limited_to"], 0);
  const std::string other = shm() + "/other";
  std::ofstream(other) << std::string(200 << 20, 'x');
  EXPECT_TRUE(daemon_->WaitForError("arena limited by " + shm() + ": "));
  EXPECT_LT(Ctl({"status"})["arena"]["limited_to"], 101 << 20);
  std::filesystem::remove(other);
  EXPECT_TRUE(daemon_->WaitForError("has room for all of it again"));
}

TEST_F(FirstStepsTest, StatusSaysWhatTheRamBudgetIsCutInto) {
  StartDaemon();
  uint64_t sum = 0;
  const nlohmann::json status = Ctl({"status"});
  for (const auto& [name, bytes] : status["ram_shares"].items()) {
    sum += bytes.get<uint64_t>();
  }
  EXPECT_EQ(sum, 256u << 20);
  EXPECT_THAT(CtlText({"status"}).out,
              HasSubstr(" of the budget are for pages; the rest: index 4.0"));
}

TEST_F(FirstStepsTest, ConfigShowsABudgetInForceInTheUnitsThatWereGiven) {
  StartDaemon({"--ssd-write-share", "40%"});
  EXPECT_EQ(Ctl({"config"})["settings"]["ram"]["value"], "256MiB");
  ASSERT_EQ(CtlText({"budget", "--ram", "200MiB", "--ssd", "2GB"}).exit_code, 0);
  EXPECT_EQ(Ctl({"config"})["settings"]["ram"]["value"], "200MiB");
  EXPECT_EQ(Ctl({"config"})["settings"]["ram"]["source"], "budget");
  EXPECT_EQ(Ctl({"config"})["settings"]["ssd"]["value"], "2GB");
}

TEST_F(FirstStepsTest, ABudgetThatIsTooSmallIsRefusedWithWhatIsKeptAndWhy) {
  StartDaemon();
  const Ran refused = CtlText({"budget", "--ram", "48MiB"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("are kept for staging, the SSD tier"));
  const size_t at = refused.err.find("the least is ") + 13;
  const std::string least = refused.err.substr(at, refused.err.find(" MiB", at) - at) + "MiB";
  EXPECT_EQ(CtlText({"budget", "--ram", least}).exit_code, 0) << least;
}

TEST_F(FirstStepsTest, ASecondDaemonOnOneSocketSaysSoBeforeItMakesAStore) {
  StartDaemon();
  std::vector<std::string> second = DaemonCommand();
  for (std::string& argument : second) {
    if (argument == dir_ + "/data") argument = dir_ + "/other";
    if (argument == arena_) argument = arena_ + "2";
  }
  Process daemon(second);
  EXPECT_EQ(daemon.Wait(), 3);
  EXPECT_THAT(daemon.err(), HasSubstr("another prefixd listens there"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/other"));
  EXPECT_FALSE(std::filesystem::exists(arena_ + "2"));
}

TEST_F(FirstStepsTest, ASocketInAFolderThatIsNotThereMakesNothing) {
  const std::string socket = dir_ + "/nonexistent/x/p.sock";
  const Ran ran = Run({"prefixd", "--socket", socket, "--directory", dir_ + "/data", "--arena",
                       arena_, "--ram", "64MiB", "--ssd", "1GiB", "--ssd-floor", "0"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_THAT(ran.err, HasSubstr("the folder " + dir_ + "/nonexistent/x is not there"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/nonexistent"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/data"));
  EXPECT_FALSE(std::filesystem::exists(arena_));
}

TEST_F(FirstStepsTest, ArenasAreListedWithSocketOwnerAgeAndRealSize) {
  StartDaemon();
  const auto arenas = Ctl({"arenas", "--folder", "/dev/shm"})["arenas"];
  const auto ours =
      std::ranges::find_if(arenas, [&](const auto& a) { return a["path"] == arena_; });
  ASSERT_NE(ours, arenas.end()) << arenas;
  EXPECT_EQ((*ours)["socket"], socket());
  EXPECT_EQ((*ours)["state"], "in use");
  EXPECT_EQ((*ours)["pid"], daemon_->pid());
  struct stat status = {};
  ASSERT_EQ(stat(arena_.c_str(), &status), 0);
  EXPECT_EQ((*ours)["bytes"], static_cast<uint64_t>(status.st_blocks) * 512);
  EXPECT_GT((*ours)["named_bytes"], (*ours)["bytes"]);
  EXPECT_LT((*ours)["age_s"], 3600);
}

TEST_F(FirstStepsTest, AnArenaThatAPrefixdHoldsIsNeverRemovedAndALeftOneIs) {
  StartDaemon();
  const Ran held = CtlText({"arenas", "--remove", arena_});
  EXPECT_EQ(held.exit_code, 1);
  EXPECT_THAT(held.err, HasSubstr("a running prefixd has it, process "));
  EXPECT_TRUE(std::filesystem::exists(arena_));
  Kill();
  const Ran left = CtlText({"arenas", "--remove", arena_});
  EXPECT_EQ(left.exit_code, 0) << left.err;
  EXPECT_THAT(left.out, HasSubstr("removed 1 arena of "));
  EXPECT_FALSE(std::filesystem::exists(arena_));
  EXPECT_FALSE(std::filesystem::exists(arena_ + ".key"));
  EXPECT_FALSE(std::filesystem::exists(arena_ + ".locks"));
  const std::string other = WriteFile("other", "no arena");
  EXPECT_EQ(CtlText({"arenas", "--remove", other}).exit_code, 1);
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(FirstStepsTest, EveryLeftArenaOfAFolderIsRemovedAndThoseInUseStay) {
  if (!MountShm("size=600m")) GTEST_SKIP() << "mounting a tmpfs needs root";
  StartDaemon();
  Kill();
  std::filesystem::rename(arena_, shm() + "/mistyped.arena");
  StartDaemon();
  EXPECT_EQ(CtlText({"arenas", "--folder", shm(), "--remove-left"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(shm() + "/mistyped.arena"));
  EXPECT_TRUE(std::filesystem::exists(arena_));
  EXPECT_EQ(Ctl({"status"})["health"], "serving");
}

TEST_F(FirstStepsTest, ACopiedDirectoryIsServedFromAnotherPlace) {
  const std::string prompt = Corpus(0, 600);
  StartDaemon();
  Worker(prompt, address());
  StopDaemon();
  std::filesystem::copy(dir_ + "/data", dir_ + "/moved", std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(dir_ + "/data");
  LoseArena();
  std::vector<std::string> moved = DaemonCommand();
  for (std::string& argument : moved) {
    if (argument == dir_ + "/data") argument = dir_ + "/moved";
  }
  daemon_ = std::make_unique<Process>(moved);
  ASSERT_TRUE(daemon_->WaitForError("listening on")) << daemon_->err();
  EXPECT_GE(Worker(prompt, address())["cached_tokens"], 599);
}

TEST_F(FirstStepsTest, EveryCounterOfStatsIsExplained) {
  std::ifstream file(PREFIXD_SOURCE_DIR "/daemon/README.md");
  std::string readme(std::istreambuf_iterator<char>(file), {});
  readme = readme.substr(readme.find("## The counters of stats"));
  readme = readme.substr(0, readme.find("## Failure modes"));
  StartDaemon();
  Worker(Corpus(0, 600), address());
  const nlohmann::json stats = Ctl({"stats"});
  ASSERT_GT(stats["counters"].size(), 40u);
  for (const auto& [name, value] : stats["counters"].items()) {
    const std::string group = name.substr(0, name.find('.') + 1);
    const bool explained = readme.find("`" + name + "`") != std::string::npos ||
                           (!group.empty() && readme.find("`" + group + "`") != std::string::npos);
    EXPECT_TRUE(explained || name.starts_with("tokens.")) << name;
  }
}

// With the programs at their places, as a package puts them there.
TEST_F(FirstStepsTest, SystemdFindsNothingToSayAboutTheUnits) {
  if (!std::filesystem::exists("/usr/bin/systemd-analyze")) {
    GTEST_SKIP() << "systemd-analyze is not installed";
  }
  std::vector<std::string> verify = {"/usr/bin/systemd-analyze", "verify"};
  for (const char* unit : {"prefixd.service", "prefixd-llama.service", "run-prefixd_arena.mount"}) {
    std::ifstream file(std::string(PREFIXD_SOURCE_DIR) + "/deploy/" + unit);
    std::string text(std::istreambuf_iterator<char>(file), {});
    // Whichever program it starts: what counts is the unit.
    if (const size_t at = text.find("ExecStart="); at != std::string::npos) {
      text.replace(at, text.find(' ', at) - at, "ExecStart=" + Program("prefixd"));
    }
    verify.push_back(WriteFile(unit, text));
  }
  Process analyze(verify);
  EXPECT_EQ(analyze.Wait(), 0) << analyze.err();
  EXPECT_EQ(analyze.err(), "");
}

TEST_F(FirstStepsTest, TheDoctorFindsNothingWrongWithARunningPrefixdAndSaysWhatIsBetter) {
  StartDaemon();
  const auto report = Ctl({"doctor"});
  EXPECT_EQ(report["wrong"], false) << report;
  const auto& findings = report["findings"];
  const auto prefixd =
      std::ranges::find_if(findings, [](const auto& one) { return one["name"] == "prefixd"; });
  ASSERT_NE(prefixd, findings.end());
  EXPECT_EQ((*prefixd)["verdict"], "fine") << *prefixd;
}

TEST_F(FirstStepsTest, TheDoctorWorksWithoutADaemonAndFailsWhereOneDoesNotAnswer) {
  EXPECT_THAT(CtlText({"doctor"}).out, HasSubstr("does not answer at " + address()));
  StartDaemon();
  Kill();
  const Ran ran = CtlText({"doctor"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("WRONG   prefixd"));
}

}  // namespace
}  // namespace prefixd::testing
