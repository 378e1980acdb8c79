// T5: a child that a worker forked keeps nothing of it: neither its memory nor its session.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "client/cpp/fork_guard.h"
#include "os/holds.h"
#include "tests/client/daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char* kAddress = "PREFIXD_FORK_TEST_ADDRESS";
constexpr int kSayTo = 3;  // where the worker says its child's pid: others write to its stderr

template <typename Done>
bool Eventually(Done done, milliseconds limit = milliseconds(20'000)) {
  for (const auto end = steady_clock::now() + limit; steady_clock::now() < end;) {
    if (done()) return true;
    std::this_thread::yield();
  }
  return false;
}

// The worker of the tests below, in a process of its own: gRPC does not survive a fork. Says the
// pid of its child, which sleeps on for ever.
TEST(ForkWorker, DISABLED_HoldsALeaseAndForks) {
  const char* const address = std::getenv(kAddress);
  ASSERT_NE(address, nullptr);
  Client client(ClientOptions{.address = address, .staging_bytes = 1 << 20});
  const SpaceSpec spec = SmallSpace(MlxAffine(8, 64, 4, 32, Dtype::kBf16));
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  ASSERT_NE(client.arena().data, nullptr) << client.arena().why_not;
  const std::vector<uint32_t> tokens = Tokens(300, 1);
  Sequence seq = space.value().Begin(tokens);
  AppendTokens(seq, spec, tokens, seq.WaitAll(), 300);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  const pid_t child = fork();
  while (child == 0) pause();
  const std::string line = std::to_string(child) + "\n";
  ASSERT_GT(write(kSayTo, line.data(), line.size()), 0);
  while (true) pause();
}

class ForkTest : public testing::Test {
 protected:
  void SetUp() override {
    daemon_.emplace(directory_.socket(), DaemonOptions{.arena = arena_.path()});
    if (!daemon_->cache().arena().shared) GTEST_SKIP() << "no tmpfs to share memory in";
    StartWorker();
  }
  void TearDown() override {
    if (child_ > 0) kill(child_, SIGKILL);
    KillWorker();
  }
  void StartWorker() {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const std::string address = directory_.address();
    setenv(kAddress, address.c_str(), 1);  // before the fork: a child of threads may not allocate
    worker_ = fork();
    if (worker_ == 0) {
      // dup2 onto itself would keep close-on-exec.
      if (ends[1] == kSayTo ? fcntl(kSayTo, F_SETFD, 0) < 0 : dup2(ends[1], kSayTo) < 0) _exit(126);
      execl("/proc/self/exe", "client_test", "--gtest_filter=ForkWorker.*",
            "--gtest_also_run_disabled_tests", nullptr);
      _exit(127);
    }
    unsetenv(kAddress);
    close(ends[1]);
    pollfd polled{.fd = ends[0], .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&polled, 1, 60'000), 1);
    char line[32] = {};
    ASSERT_GT(read(ends[0], line, sizeof(line) - 1), 0) << "the worker failed";
    close(ends[0]);
    child_ = static_cast<pid_t>(std::atoi(line));
    ASSERT_GT(child_, 0) << line;
    ASSERT_GT(daemon_->cache().GetStats().leases, 0u);
  }
  void KillWorker() {
    if (worker_ <= 0) return;
    kill(worker_, SIGKILL);
    waitpid(worker_, nullptr, 0);
    worker_ = -1;
  }
  // What `process` has open or mapped of the arena, its locks, staging and connections.
  static std::string Maps(pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/maps");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static std::string Files(pid_t process) {
    std::string names;
    for (const auto& file :
         std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd")) {
      std::error_code error;
      names += std::filesystem::read_symlink(file.path(), error).string() + "\n";
    }
    return names;
  }

  TempDirectory directory_;
  ArenaPath arena_;
  std::optional<Daemon> daemon_;
  pid_t worker_ = -1, child_ = -1;
};

TEST_F(ForkTest, T5TheSlotAndLeasesOfAKilledWorkerAreFreeAlthoughItsChildSleepsOn) {
  KillWorker();
  // Long before the daemon misses an answer to its pings (30 s).
  EXPECT_TRUE(Eventually([&] { return daemon_->cache().ListSessions().empty(); }));
  EXPECT_EQ(daemon_->cache().GetStats().leases, 0u);
  EXPECT_EQ(daemon_->cache().GetStats().leased_bytes, 0u);
  EXPECT_EQ(kill(child_, 0), 0) << "the child is still there";
}

TEST_F(ForkTest, T5AChildHasNoneOfItsParentsFilesAndMappings) {
  for (const std::string& name : {arena_.path(), std::string("prefixd-staging")}) {
    EXPECT_NE(Maps(worker_).find(name), std::string::npos) << name;
    // The child's own part of the fork may still be running.
    EXPECT_TRUE(Eventually([&] { return Maps(child_).find(name) == std::string::npos; })) << name;
    EXPECT_TRUE(Eventually([&] { return Files(child_).find(name) == std::string::npos; })) << name;
    if (os::HoldKind()[0] != '\0') continue;  // the worker's descriptors stay open
    EXPECT_EQ(Files(worker_).find(name), std::string::npos) << "a mapping is enough: " << name;
  }
}

// A connection that carries direct calls would go on in the child.
TEST_F(ForkTest, T5AChildHasNoConnectionToTheDaemon) {
  const auto sockets = [](pid_t process) {
    const std::string files = Files(process);
    size_t count = 0;
    for (size_t at = files.find("socket:"); at != std::string::npos;
         at = files.find("socket:", at + 1))
      ++count;
    return count;
  };
  EXPECT_GE(sockets(worker_), 2u) << "gRPC's and the side socket's";
  EXPECT_TRUE(Eventually([&] { return sockets(child_) == 0; }));
}

// What is open for a moment, before it is mapped, no child has.
TEST(ForkGuardTest, T5NoForkHappensWhileAGuardLives) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  std::thread forks;
  {
    const client::ForkGuard guard;
    forks = std::thread([&] {
      const pid_t child = fork();
      if (child == 0) _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
      waitpid(child, nullptr, 0);
    });
    std::this_thread::sleep_for(milliseconds(50));  // gives a wrong guard its chance
    char byte = 0;
    EXPECT_LT(read(ends[0], &byte, 1), 0) << "a child ran meanwhile";
  }
  forks.join();
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace prefixd
