// The program as a user starts it: exit codes, sockets, directories, signals.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "daemon/config.h"
#include "daemon/socket_guard.h"
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;

class ProgramTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const pid_t pid : running_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    std::filesystem::remove(arena_path_);
  }
  pid_t Start(std::vector<std::string> args) {
    args.insert(args.begin(), PREFIXD_BINARY_DIR "/prefixd");
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int log = ::open((dir_.path() + "/log").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(log, STDERR_FILENO);
      ::dup2(log, STDOUT_FILENO);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    running_.push_back(pid);
    return pid;
  }
  int Wait(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    std::erase(running_, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::vector<std::string> Args(const std::string& socket = "s",
                                const std::string& directory = "ssd") {
    return {"--socket",    dir_.path() + "/" + socket,
            "--directory", dir_.path() + "/" + directory,
            "--arena",     arena_path_,
            "--ram",       "64MiB",
            "--ssd",       "1GiB",
            "--ssd-floor", "0"};
  }
  static std::vector<std::string> Plus(std::vector<std::string> args, const std::string& name,
                                       const std::string& value) {
    for (size_t i = 0; i < args.size(); i += 2) {
      if (args[i] == name)
        args.erase(args.begin() + static_cast<long>(i), args.begin() + static_cast<long>(i) + 2);
    }
    args.push_back(name);
    args.push_back(value);
    return args;
  }
  std::string target() const { return "unix:" + dir_.path() + "/s"; }
  bool Serves() {
    return Worker::Channel(target())->WaitForConnected(std::chrono::system_clock::now() +
                                                       std::chrono::seconds(30));
  }
  std::string Log() {
    std::stringstream text;
    text << std::ifstream(dir_.path() + "/log").rdbuf();
    return text.str();
  }

  TempDir dir_;
  const std::string arena_path_ =
      "/dev/shm/" + std::filesystem::path(dir_.path()).filename().string() + ".arena";
  std::vector<pid_t> running_;
};

TEST_F(ProgramTest, SigtermSavesEverythingAndARestartHasIt) {
  pid_t pid = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  const block::SpaceIdentity identity = SmallIdentity();
  const Tokens tokens = SomeTokens(1, 53);
  {
    Worker worker(target());
    worker.Attach();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
    v1::CommitReply stored;
    ASSERT_TRUE(worker.Store(identity, space.space(), tokens, &stored).ok());
    ::kill(pid, SIGTERM);
    v1::SessionEvent event;
    EXPECT_TRUE(worker.events->Read(&event) && event.has_draining());
    EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
  }
  EXPECT_THAT(Log(), HasSubstr("nothing unsaved"));
  EXPECT_THAT(Log(), HasSubstr("commit tokens=53 stored=53 duplicate=0 entries=1"));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/s"));
  pid = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  Worker worker(target());
  worker.Attach();
  v1::OpenSpaceReply space;
  ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
  v1::AcquireReply reply;
  ASSERT_TRUE(worker.Acquire(space.space(), tokens, &reply).ok());
  EXPECT_EQ(reply.answers(0).restorable_tokens(), 53u);
  EXPECT_EQ(reply.answers(0).kind(), v1::MATCH_KIND_EXACT);
}

// What was acknowledged is there after kill -9, without any SSD tier.
TEST_F(ProgramTest, AfterAKillTheNextDaemonAdoptsThePages) {
  const std::vector<std::string> args = Plus(Args(), "--ssd", "off");
  pid_t pid = Start(args);
  ASSERT_TRUE(Serves()) << Log();
  if (Log().find("arena: shared") == std::string::npos) GTEST_SKIP() << "no tmpfs to share";
  const block::SpaceIdentity identity = SmallIdentity();
  const Tokens tokens = SomeTokens(1, 53);
  {
    Worker worker(target());
    worker.Attach();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
    v1::CommitReply stored;
    ASSERT_TRUE(worker.Store(identity, space.space(), tokens, &stored).ok());
    ::kill(pid, SIGKILL);
    EXPECT_EQ(Wait(pid), -SIGKILL);
  }
  pid = Start(args);
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_THAT(Log(), HasSubstr("adopted 8 pages"));
  EXPECT_THAT(Log(), HasSubstr("serving after "));
  Worker worker(target());
  worker.Attach();
  v1::OpenSpaceReply space;
  ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
  v1::AcquireReply reply;
  ASSERT_TRUE(worker.Acquire(space.space(), tokens, &reply).ok());
  EXPECT_EQ(reply.answers(0).restorable_tokens(), 53u);
  EXPECT_EQ(worker.Stats().arena().adopted_pages(), 8u);
}

TEST_F(ProgramTest, WithoutATmpfsItServesByCopyAndSaysWhy) {
  Start(Plus(Args(), "--arena", dir_.path() + "/ssd/../no.arena"));
  ASSERT_TRUE(Serves()) << Log();
  Worker worker(target());
  worker.AttachArena();
  if (worker.attached.arena()) GTEST_SKIP() << "the temporary directory is a tmpfs";
  EXPECT_THAT(worker.attached.why_no_arena(), HasSubstr("private"));
  EXPECT_THAT(Log(), HasSubstr("arena: private memory, "));
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/s.fd"));
}

// systemd starts again what ended with any other code.
TEST_F(ProgramTest, WhatNoStartCanSatisfyExitsAsAWrongSetting) {
  EXPECT_EQ(Wait(Start(Args(std::string(120, 'l')))), daemon::kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("at most 107"));
  EXPECT_EQ(Wait(Start(Plus(Args(), "--ram", "1MiB"))), daemon::kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("RAM budget of 1.0 MiB is too small"));
}

// A5: an unwritable directory, wrong settings.
TEST_F(ProgramTest, WhatCannotStartSaysWhyInOneLineAndHasItsExitCode) {
  EXPECT_EQ(Wait(Start({"--nonsense"})), daemon::kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("--nonsense"));
  EXPECT_EQ(Wait(Start(Plus(Args(), "--ram", "lots"))), daemon::kExitUsage);
  std::ofstream(dir_.path() + "/file") << "x";
  EXPECT_EQ(Wait(Start(Args("s", "file/ssd"))), daemon::kExitStart);
  EXPECT_THAT(Log(), HasSubstr("prefixd: directory: cannot make"));
  EXPECT_EQ(Wait(Start(Plus(Args(), "--directory", "/proc/prefixd"))), daemon::kExitStart);
  EXPECT_EQ(Wait(Start({"--version"})), daemon::kExitOk);
}

// A5: a second daemon on the same socket or directory.
TEST_F(ProgramTest, ASecondDaemonIsRefusedAndTheFirstGoesOn) {
  Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_EQ(Wait(Start(Args("s", "other"))), daemon::kExitStart);
  EXPECT_THAT(Log(), HasSubstr("another prefixd listens there"));
  EXPECT_EQ(Wait(Start(Args("t", "ssd"))), daemon::kExitStart);
  EXPECT_THAT(Log(), HasSubstr("in use by another prefixd"));
  EXPECT_GT(Worker(target()).Stats().uptime_s(), 0);
}

TEST_F(ProgramTest, ASocketThatAKilledDaemonLeftIsTakenOver) {
  const pid_t pid = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  ::kill(pid, SIGKILL);
  EXPECT_EQ(Wait(pid), -SIGKILL);
  ASSERT_TRUE(std::filesystem::exists(dir_.path() + "/s"));
  Start(Args());
  EXPECT_TRUE(Serves()) << Log();
}

TEST_F(ProgramTest, WithoutAnSsdTierStoppingSaysThatNothingIsKept) {
  const pid_t pid = Start(Plus(Args(), "--ssd", "off"));
  ASSERT_TRUE(Serves()) << Log();
  Worker worker(target());
  worker.Attach();
  const block::SpaceIdentity identity = SmallIdentity();
  v1::OpenSpaceReply space;
  ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
  v1::CommitReply stored;
  ASSERT_TRUE(worker.Store(identity, space.space(), SomeTokens(1, 53), &stored).ok());
  ::kill(pid, SIGINT);
  EXPECT_EQ(Wait(pid), daemon::kExitOk);
  EXPECT_THAT(Log(), HasSubstr("there is no ssd tier"));
  if (Log().find("arena: shared") != std::string::npos) {
    EXPECT_THAT(Log(), HasSubstr("the rest is in the arena file"));
  }
}

TEST_F(ProgramTest, ASocketSomebodyElseAnswersOnIsLeftAlone) {
  const std::string path = dir_.path() + "/s";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  EXPECT_THAT(std::string(daemon::SocketGuard::Claim(path).status().message()),
              HasSubstr("another process listens"));
  ::close(fd);
  EXPECT_TRUE(daemon::SocketGuard::Claim(path).ok());
  std::ofstream(dir_.path() + "/plain") << "precious";
  EXPECT_THAT(std::string(daemon::SocketGuard::Claim(dir_.path() + "/plain").status().message()),
              HasSubstr("no socket"));
  EXPECT_FALSE(daemon::SocketGuard::Claim(dir_.path() + "/" + std::string(120, 'l')).ok());
}

}  // namespace
}  // namespace prefixd::testing
