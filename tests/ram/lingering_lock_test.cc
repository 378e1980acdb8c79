// T8: the kernel gives a killed daemon's locks back a moment after it was reaped. Here that moment
// is as long as a test wants: a process that was forked from the daemon keeps its files open.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/file_lock.h"
#include "ram/make_file.h"
#include "ram/slots.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A daemon that stored a page and was killed, and whose lock lingers until Release.
class KilledDaemon {
 public:
  explicit KilledDaemon(const ArenaPath& path) {
    Signal stored;
    Child daemon([&] {
      const auto arena = OpenOrDie(path);
      Store(*arena, arena->AddSpace(SpaceIdOf(1), "one").value(), 7, 16 * kKiB);
      if (fork() == 0) {
        stored.Send();
        release_.Await();
        _exit(0);  // only now the kernel closes the arena's file
      }
      pause();
    });
    stored.Await();
    pid_ = daemon.pid();
    daemon.Signal(SIGKILL);
    EXPECT_EQ(daemon.Wait(), 128 + SIGKILL);
  }
  ~KilledDaemon() { Release(); }
  KilledDaemon(const KilledDaemon&) = delete;
  KilledDaemon& operator=(const KilledDaemon&) = delete;
  pid_t pid() const { return pid_; }
  void Release() {
    if (!std::exchange(released_, true)) release_.Send();
  }

 private:
  Signal release_;
  bool released_ = false;
  pid_t pid_ = -1;
};

TEST(LingeringLockTest, T8TheArenaOfAKilledDaemonIsAdoptedOnceTheKernelGaveItsLockBack) {
  const ArenaPath path;
  KilledDaemon killed(path);
  const ino_t inode = StatOf(path.str()).st_ino;
  Arena::Options options = SharedOptions(path);
  std::vector<std::string> said;
  options.lock_wait.say = [&](const std::string& line) {
    said.push_back(line);
    killed.Release();
  };
  const auto arena = OpenOrDie(options);
  ASSERT_NE(arena, nullptr);
  EXPECT_EQ(StatOf(path.str()).st_ino, inode);
  EXPECT_THAT(arena->TakeFound(), SizeIs(1));
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], HasSubstr(absl::StrCat("arena: ", path.str(), " is locked by process ",
                                              killed.pid(), ", which has ended: waiting up to ")));
}

TEST(LingeringLockTest, T8AnArenaWhoseOwnerIsNotNamedIsWaitedForToo) {
  const ArenaPath path;
  KilledDaemon killed(path);
  // As an earlier prefixd made the file: zeros where the owner's name stands now.
  const std::string zeros(128, '\0');
  Overwrite(path.str(), block::kArenaOwnerOffset, zeros.data(), zeros.size());
  Overwrite(path.str() + ".locks/owner", 0, zeros.data(), zeros.size());
  Arena::Options options = SharedOptions(path);
  options.lock_wait.say = [&](const std::string& line) {
    EXPECT_THAT(line, HasSubstr("locked by a process that is not named"));
    killed.Release();
  };
  const auto arena = OpenOrDie(options);
  ASSERT_NE(arena, nullptr);
  EXPECT_THAT(arena->replaced_why(), IsEmpty());
  EXPECT_THAT(arena->TakeFound(), SizeIs(1));
}

TEST(LingeringLockTest, T8TheWaitEndsAndSaysWhoseLockItWas) {
  const ArenaPath path;
  const KilledDaemon killed(path);
  Arena::Options options = SharedOptions(path);
  options.lock_wait.limit = std::chrono::milliseconds(30);
  const absl::Status status = Arena::Open(options).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("process ", killed.pid(), ", which has ended; waited 30 ms")));
}

// T5: who may read the arena can lock it, once the daemon that had it is dead.
TEST(LingeringLockTest, T5AWorkerThatLocksTheArenaKeepsNobodyFromIt) {
  const ArenaPath path;
  { KilledDaemon killed(path); }
  while (!base::IsUnlocked(path.str() + ".locks/owner"))
    sched_yield();  // its fork is on its way out
  const int worker = open(path.str().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(worker, LOCK_SH), 0);
  EXPECT_TRUE(CouldBeOwned(path.str()));
  Arena::Options options = SharedOptions(path);
  options.lock_wait.say = [](const std::string& line) { ADD_FAILURE() << line; };
  const auto arena = OpenOrDie(options);
  ASSERT_NE(arena, nullptr);
  EXPECT_THAT(arena->TakeFound(), SizeIs(1));
  EXPECT_FALSE(CouldBeOwned(path.str()));
  EXPECT_TRUE(absl::IsUnavailable(Arena::Open(SharedOptions(path)).status()));
  close(worker);
}

// As when somebody cleans up under a daemon: its own file tells that it lives.
TEST(LingeringLockTest, AnOwnerWhoseFolderOfLocksWasRemovedIsStillItsOwner) {
  const ArenaPath path;
  const auto owner = OpenOrDie(path);
  std::filesystem::remove_all(path.str() + ".locks");
  EXPECT_FALSE(CouldBeOwned(path.str()));
  EXPECT_TRUE(absl::IsUnavailable(Arena::Open(SharedOptions(path)).status()));
}

TEST(LingeringLockTest, T8NobodyWaitsBesideALivingOwner) {
  const ArenaPath path;
  const auto owner = OpenOrDie(path);
  Arena::Options options = SharedOptions(path);
  options.lock_wait = {.limit = std::chrono::hours(1),
                       .say = [](const std::string& line) { ADD_FAILURE() << line; }};
  EXPECT_TRUE(absl::IsUnavailable(Arena::Open(options).status()));
}

// An owner that was stopped may go on at any time: it lives.
TEST(LingeringLockTest, T8AStoppedOwnerIsALivingOneAndAKilledOneIsNotEvenUnreaped) {
  const ArenaPath path;
  Signal open;
  Child daemon([&] {
    const auto arena = OpenOrDie(path);
    open.Send();
    while (true) pause();
  });
  open.Await();
  daemon.Signal(SIGSTOP);
  ASSERT_TRUE(daemon.WaitStopped());
  EXPECT_TRUE(absl::IsUnavailable(Arena::Open(SharedOptions(path)).status()));
  daemon.Signal(SIGKILL);  // nobody reaps it
  EXPECT_NE(OpenOrDie(path), nullptr);
}

// The slot of a worker that was killed with the daemon: its lock lingers the same way.
TEST(LingeringLockTest, T8ASlotLockThatLingersIsHeldUntilItIsGoneAndThenFree) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Signal release;
  uint32_t slot = 0;
  {
    Slots before(arena.get());
    slot = *before.Claim(KeyHash({}));
    const SlotFiles files = before.OpenFor(slot).value();
    Signal forked;
    Child worker([&] {
      if (fork() == 0) {
        forked.Send();
        release.Await();
        _exit(0);
      }
      pause();
    });
    close(files.arena);
    close(files.lock);
    forked.Await();
    worker.Signal(SIGKILL);
    worker.Wait();
  }
  Slots slots(arena.get());
  ASSERT_THAT(slots.Held(), SizeIs(1));
  EXPECT_NE(*slots.Claim(KeyHash({})), slot);
  release.Send();
  EXPECT_TRUE(Becomes([&] { return !slots.Locked(slot); }));
  slots.Release(slot);
  EXPECT_EQ(*slots.Claim(KeyHash({})), slot);
}

}  // namespace
}  // namespace prefixd::ram
