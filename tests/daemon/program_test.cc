// The program as a user starts it: exit codes, sockets, directories, signals.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "daemon/config.h"
#include "daemon/socket_guard.h"
#include "tests/daemon/program_fixture.h"

namespace prefixd::testing {
namespace {

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

// A worker that computes between its plan and its commit runs no request: found by tests/stress.
TEST_F(ProgramTest, WhatWasPlannedBeforeAStopAndStoredDuringItIsSavedToo) {
  const pid_t pid = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  const block::SpaceIdentity identity = SmallIdentity();
  Worker worker(target());
  worker.Attach();
  v1::OpenSpaceReply space;
  ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
  std::vector<v1::ReserveReply> plans(500);
  for (uint32_t i = 0; i < plans.size(); ++i) {
    ASSERT_TRUE(worker.Reserve(space.space(), SomeTokens(i, 16), &plans[i]).ok());
  }
  ::kill(pid, SIGTERM);
  v1::CommitReply stored;
  for (uint32_t i = 0; i < plans.size(); ++i) {
    if (!worker.Put(worker.ChunksOf(identity, SomeTokens(i, 16), plans[i], true), &stored).ok()) {
      break;  // it has stopped
    }
  }
  EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
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

TEST_F(ProgramTest, RequestsThatTakeLongerThanTheLimitAreWarnedOfWithWhereTheTimeWent) {
  const block::SpaceIdentity identity = SmallIdentity();
  const Tokens tokens = SomeTokens(1, 40'000);
  for (const std::string limit : {"0", "1h", "1us"}) {
    const pid_t pid = Start(Plus(Args(), "--slow-request", limit));
    ASSERT_TRUE(Serves()) << Log();
    Worker worker(target());
    worker.Attach();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
    v1::CommitReply stored;
    ASSERT_TRUE(worker.Store(identity, space.space(), SomeTokens(1, 400), &stored).ok());
    v1::AcquireReply reply;
    ASSERT_TRUE(worker.Acquire(space.space(), tokens, &reply).ok());
    EXPECT_EQ(worker.Counter("requests.slow") > 0, limit == "1us");
    ::kill(pid, SIGTERM);
    ASSERT_EQ(Wait(pid), daemon::kExitOk) << Log();
    if (limit != "1us") {
      EXPECT_THAT(Log(), ::testing::Not(HasSubstr("slow:"))) << limit;
    }
  }
  EXPECT_THAT(Log(), HasSubstr(" warning slow: acquire HIT kind=PREFIX"));
  EXPECT_THAT(Log(), HasSubstr(" warning slow: commit tokens=400"));
  EXPECT_THAT(Log(), HasSubstr("us waited=0us remote=0us match="));
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

// T8: the kernel gives the locks of a killed daemon back a moment after it was reaped. Here another
// process, this one, takes them meanwhile: the names in the files are still those of the dead.
class LingeringLocks {
 public:
  explicit LingeringLocks(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      EXPECT_GE(fd, 0) << path;
      EXPECT_EQ(::flock(fd, LOCK_EX | LOCK_NB), 0) << path;
      fds_.push_back(fd);
    }
  }
  ~LingeringLocks() {
    for (size_t i = 0; i < fds_.size(); ++i) Release(i);
  }
  LingeringLocks(const LingeringLocks&) = delete;
  LingeringLocks& operator=(const LingeringLocks&) = delete;
  void Release(size_t i) {
    if (const int fd = std::exchange(fds_[i], -1); fd >= 0) ::close(fd);
  }

 private:
  std::vector<int> fds_;
};

TEST_F(ProgramTest, T8AStartRightAfterAKillWaitsForEachLockThatLingersAndAdopts) {
  const pid_t killed = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  if (Log().find("arena: shared") == std::string::npos) GTEST_SKIP() << "no tmpfs to share";
  {
    Worker worker(target());
    worker.Attach();
    const block::SpaceIdentity identity = SmallIdentity();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
    v1::CommitReply stored;
    ASSERT_TRUE(worker.Store(identity, space.space(), SomeTokens(1, 53), &stored).ok());
  }
  ::kill(killed, SIGKILL);
  ASSERT_EQ(Wait(killed), -SIGKILL);
  const std::vector<std::string> paths = {dir_.path() + "/s.lock", arena_path_ + ".locks/owner",
                                          dir_.path() + "/ssd/prefixd.lock",
                                          dir_.path() + "/s.fd.lock"};
  LingeringLocks locks(paths);
  Start(Args());
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string lock = i == 1 ? arena_path_ : i == 2 ? dir_.path() + "/ssd" : paths[i];
    const std::string line =
        absl::StrCat(lock, " is locked by process ", killed, ", which has ended: waiting up to");
    ASSERT_TRUE(Says(line)) << line << "\n" << Log();
    locks.Release(i);
  }
  ASSERT_TRUE(Serves()) << Log();
  EXPECT_THAT(Log(), HasSubstr("adopted 8 pages"));
}

TEST_F(ProgramTest, T8ADaemonBesideTheArenasOwnerTakesTheArenaOverWithoutARestart) {
  const pid_t owner = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  if (Log().find("arena: shared") == std::string::npos) GTEST_SKIP() << "no tmpfs to share";
  const block::SpaceIdentity identity = SmallIdentity();
  const Tokens owners = SomeTokens(1, 53), besides = SomeTokens(2, 53);
  const auto store = [&](Worker& worker, const Tokens& tokens) {
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
    v1::CommitReply stored;
    ASSERT_TRUE(worker.Store(identity, space.space(), tokens, &stored).ok());
  };
  {
    Worker worker(target());
    worker.Attach();
    store(worker, owners);
  }
  Start(Args("t", "other"));
  const std::string beside = "unix:" + dir_.path() + "/t";
  ASSERT_TRUE(Says("private memory as long as another process")) << Log();
  {
    Worker worker(beside);
    worker.AttachArena();
    EXPECT_FALSE(worker.attached.arena());
    EXPECT_EQ(worker.Counter("arena.held_by_another"), 1u);
    store(worker, besides);
    ::kill(owner, SIGKILL);
    ASSERT_EQ(Wait(owner), -SIGKILL);
    v1::SessionEvent event;
    EXPECT_TRUE(worker.events->Read(&event) && event.has_draining()) << "it is told to attach anew";
  }
  ASSERT_TRUE(Says("serving after ", "is free again")) << Log();
  Worker worker(beside);
  worker.AttachArena();
  EXPECT_TRUE(worker.attached.arena());
  EXPECT_EQ(worker.Counter("arena.held_by_another"), 0u);
  EXPECT_EQ(worker.Counter("arena.taken_over"), 1u);
  v1::OpenSpaceReply space;
  ASSERT_TRUE(worker.OpenSpace(identity, &space).ok());
  for (const Tokens& tokens : {owners, besides}) {
    v1::AcquireReply reply;
    ASSERT_TRUE(worker.Acquire(space.space(), tokens, &reply).ok());
    EXPECT_EQ(reply.answers(0).restorable_tokens(), 53u)
        << "what the owner had in the arena, and what was in private memory, by way of the SSD";
  }
}

TEST_F(ProgramTest, T8ASignalWhileTheArenaIsTakenOverStopsTheDaemon) {
  const pid_t first = Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  if (Log().find("arena: shared") == std::string::npos) GTEST_SKIP() << "no tmpfs to share";
  const pid_t second = Start(Args("t", "other"));
  ASSERT_TRUE(Says("private memory as long as another process")) << Log();
  ::kill(first, SIGKILL);
  ASSERT_EQ(Wait(first), -SIGKILL);
  ASSERT_TRUE(Says("is free again")) << Log();
  ::kill(second, SIGTERM);
  EXPECT_EQ(Wait(second), daemon::kExitOk) << Log();
}

TEST_F(ProgramTest, T8ASocketOfAKilledProcessThatStillAnswersIsWaitedFor) {
  const std::string path = dir_.path() + "/s";
  int release[2];
  ASSERT_EQ(::pipe(release), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) ::_exit(1);
    if (::listen(fd, 8) != 0) ::_exit(1);
    if (::fork() == 0) {  // keeps the socket open
      char byte = 0;
      (void)!::read(release[0], &byte, 1);
      ::_exit(0);
    }
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  EXPECT_FALSE(daemon::SocketGuard::Claim(path, {.limit = std::chrono::milliseconds(20)}).ok());
  EXPECT_TRUE(daemon::SocketGuard::Claim(
                  path, {.say = [&](const std::string&) { (void)!::write(release[1], "x", 1); }})
                  .ok());
  ::close(release[0]);
  ::close(release[1]);
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
              HasSubstr("not a socket"));
  EXPECT_FALSE(daemon::SocketGuard::Claim(dir_.path() + "/" + std::string(120, 'l')).ok());
}

// A terminal that is stopped, a journal that hangs: the pipe is full after some hundred lines.
TEST_F(ProgramTest, T4WhenNobodyReadsTheLogEveryRequestIsServedAndSigtermEndsTheDaemon) {
  int pipe[2] = {-1, -1};
  ASSERT_EQ(::pipe(pipe), 0);
  std::vector<std::string> args = Args();
  args.insert(args.end(), {"--log-level", "debug"});
  const pid_t pid = Start(args, pipe[1]);
  ASSERT_TRUE(Serves());
  {
    Worker worker(target());
    worker.Attach();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(SmallIdentity(), &space).ok());
    // Lines of many messages, so that no limit of one keeps the pipe from being full.
    v1::NotSharedRequest note;
    note.set_session(worker.session);
    note.set_model(std::string(1024, 'm'));
    for (int i = 0; i < 300; ++i) {
      Context context;
      v1::Ack ack;
      note.set_reason(std::string(1000, static_cast<char>('a' + i % 26)));
      ASSERT_TRUE(worker.cache->NotShared(&context, note, &ack).ok()) << i;
      v1::AcquireReply reply;
      ASSERT_TRUE(worker.Acquire(space.space(), SomeTokens(1, 64), &reply).ok()) << i;
    }
    Worker other(target());
    EXPECT_GT(other.Stats().uptime_s(), 0);
  }
  ::kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), daemon::kExitOk);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

// Nothing is to be saved: a Put that brings nothing more is no reason to wait.
TEST_F(ProgramTest, T4ASilentStreamHoldsNoStop) {
  std::vector<std::string> args = Plus(Args(), "--ssd", "off");
  args.insert(args.end(), {"--drain-deadline", "24h"});
  const pid_t pid = Start(args);
  ASSERT_TRUE(Serves()) << Log();
  Worker worker(target());
  worker.Attach();
  v1::OpenSpaceReply space;
  ASSERT_TRUE(worker.OpenSpace(SmallIdentity(), &space).ok());
  v1::ReserveReply plan;
  ASSERT_TRUE(worker.Reserve(space.space(), SomeTokens(1, 64), &plan).ok());
  grpc::ClientContext context;
  v1::CommitReply reply;
  const auto put = worker.cache->Put(&context, &reply);
  v1::PutChunk header;
  header.mutable_header()->set_session(worker.session);
  header.mutable_header()->set_reservation(plan.reservation());
  ASSERT_TRUE(put->Write(header));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
  put->Finish();
}

// T5: a directory that somebody prepared for whoever starts as root there.
TEST_F(ProgramTest, T5RootRefusesAPathThatAnotherUserPrepared) {
  if (::geteuid() != 0) GTEST_SKIP() << "the trap is one for root";
  const std::string theirs = dir_.path() + "/theirs", victim = dir_.path() + "/victim";
  std::ofstream(victim) << "precious";
  ASSERT_EQ(::mkdir(theirs.c_str(), 0755), 0);
  for (const char* const name : {"ssd", "s.lock", "known"}) {
    ASSERT_EQ(::symlink(victim.c_str(), (theirs + "/" + name).c_str()), 0);
  }
  ASSERT_EQ(::chown(theirs.c_str(), 12345, 12345), 0);
  const std::string whose = "belongs to user 12345, this is 0: run prefixd as that user";
  for (const auto& [name, path] :
       {std::pair{"--directory", theirs}, std::pair{"--directory", theirs + "/new/ssd"},
        std::pair{"--directory", theirs + "/ssd"}, std::pair{"--socket", theirs + "/s"}}) {
    std::filesystem::remove(dir_.path() + "/log");
    EXPECT_EQ(Wait(Start(Plus(Args(), name, path))), daemon::kExitStart) << path;
    EXPECT_THAT(Log(), HasSubstr(whose)) << path;
  }
  EXPECT_FALSE(std::filesystem::exists(theirs + "/new"));
  std::string text;
  std::ifstream(victim) >> text;
  EXPECT_EQ(text, "precious");
}

// T5: a file that every user may write to, in place of the socket's lock.
TEST_F(ProgramTest, T5ALockFileOfAnotherUserIsNotWrittenTo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make one";
  const std::string lock = dir_.path() + "/s.lock";
  std::ofstream(lock) << "precious";
  ASSERT_EQ(::chown(lock.c_str(), 12345, 12345), 0);
  EXPECT_EQ(Wait(Start(Args())), daemon::kExitStart);
  EXPECT_THAT(Log(), HasSubstr("s.lock belongs to user 12345"));
  std::string text;
  std::ifstream(lock) >> text;
  EXPECT_EQ(text, "precious");
}

}  // namespace
}  // namespace prefixd::testing
