// Slots: who maps the arena, and whether that process still can read. The kernel says, no timer.
#include "ram/slots.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/ram/shared_arena.h"
#include "tests/support/worker_lock.h"

namespace prefixd::ram {
namespace {

using testing::IsEmpty;

constexpr base::Peer kOwner{.pid = 4711, .uid = 7, .pid_namespace = 99};

base::Digest256 HashOf(uint8_t seed) {
  SessionKey key{};
  key.fill(std::byte{seed});
  return KeyHash(key);
}

// What a worker takes: both files, or none.
class Files {
 public:
  Files(Slots* slots, uint32_t slot) : files_(slots->OpenFor(slot).value()) {}
  ~Files() { Close(); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  void Close() {
    for (int* const fd : {&files_.arena, &files_.lock}) {
      if (*fd >= 0) close(std::exchange(*fd, -1));
    }
  }
  int arena() const { return files_.arena; }
  int lock() const { return files_.lock; }

 private:
  SlotFiles files_;
};

// Not SIGBUS-proof, as it is never touched: the mapping keeps the lock.
void* MapLock(int fd) {
  void* const map = mmap(nullptr, 4096, PROT_NONE, MAP_SHARED, fd, 0);
  EXPECT_NE(map, MAP_FAILED);
  return map;
}

void* MapReadOnly(int fd, uint64_t bytes) {
  void* const map = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  EXPECT_NE(map, MAP_FAILED);
  return map;
}

TEST(SlotsTest, AWorkersDescriptionCannotBeMappedWritable) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const Files files(&slots, *slots.Claim(HashOf(1)));
  const int fd = files.arena();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
  void* const map = MapReadOnly(fd, arena->file_bytes());
  EXPECT_EQ(mprotect(map, 4096, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(pwrite(files.lock(), "x", 1, 0), -1);
  munmap(map, arena->file_bytes());
}

using SlotsDeathTest = testing::Test;
TEST(SlotsDeathTest, WritingThroughAWorkersMappingEndsTheWorker) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const Files files(&slots, *slots.Claim(HashOf(1)));
  const block::Extent extent = arena->Allocate(4096, 4096).value();
  FillPayload(*arena, extent, 9);
  Child worker([&] {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would report it
    auto* const map = static_cast<volatile char*>(MapReadOnly(files.arena(), arena->file_bytes()));
    map[arena->data_offset() + extent.offset] = 1;
  });
  EXPECT_EQ(worker.Wait(), 128 + SIGSEGV);
  EXPECT_TRUE(HasPayload(arena->data(extent), extent.bytes, 9));
}

TEST(SlotsTest, TheLockLastsAsLongAsTheLastDescriptorOrMapping) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const uint32_t slot = *slots.Claim(HashOf(1));
  EXPECT_FALSE(slots.Locked(slot));
  Files files(&slots, slot);
  EXPECT_TRUE(slots.Locked(slot));
  EXPECT_FALSE(slots.Locked(slot + 1));
  void* const map = MapLock(files.lock());
  files.Close();
  EXPECT_TRUE(slots.Locked(slot)) << "the mapping still says that somebody reads";
  munmap(map, 4096);
  EXPECT_TRUE(Becomes([&] { return !slots.Locked(slot); }));
}

TEST(SlotsTest, AKilledWorkerUnlocksItsSlotAndAStoppedOneDoesNot) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const uint32_t slot = *slots.Claim(HashOf(1));
  Files files(&slots, slot);
  Signal mapped;
  Child worker([&] {
    MapLock(files.lock());
    files.Close();
    mapped.Send();
    while (true) pause();
  });
  mapped.Await();
  files.Close();
  EXPECT_TRUE(slots.Locked(slot));
  worker.Signal(SIGSTOP);
  ASSERT_TRUE(worker.WaitStopped());
  EXPECT_TRUE(slots.Locked(slot));
  worker.Signal(SIGKILL);
  EXPECT_TRUE(Becomes([&] { return !slots.Locked(slot); }));
}

// T5: what a worker locks says nothing of anybody else, nor keeps anybody from locking.
TEST(SlotsTest, T5AWorkersDescriptorsLockNoOtherSlot) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const uint32_t hers = *slots.Claim(HashOf(1)), his = *slots.Claim(HashOf(2));
  const Files files(&slots, hers);
  // The whole arena, on which the daemon itself has a flock.
  EXPECT_EQ(TakeLock(files.arena(), WorkerLock::kShared), HoldsAreOfd());
  ASSERT_TRUE(TakeLock(files.lock(), WorkerLock::kShared));
  for (uint32_t slot = 0; slot < block::kArenaSlots; ++slot) {
    EXPECT_EQ(slots.Locked(slot), slot == hers) << slot;
  }
  EXPECT_NE(TakeLock(files.lock(), WorkerLock::kAlone), HoldsAreOfd());
  EXPECT_TRUE(slots.Locked(hers)) << "nor does it keep its own from being found";
  const Files his_files(&slots, his);
  EXPECT_TRUE(slots.Locked(his));
  EXPECT_EQ(slots.Claim(HashOf(3)), 2u);
}

// T5: a descriptor that its worker kept is of no use once the slot is another session's.
TEST(SlotsTest, T5AnEarlierSessionsLockFileSaysNothingOfTheNext) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const uint32_t slot = *slots.Claim(HashOf(1));
  const Files files(&slots, slot);
  ASSERT_TRUE(TakeLock(files.lock(), WorkerLock::kNone));
  EXPECT_FALSE(slots.Locked(slot));
  slots.Release(slot);
  EXPECT_EQ(slots.Claim(HashOf(2)), slot);
  ASSERT_TRUE(TakeLock(files.lock(), WorkerLock::kShared));
  EXPECT_FALSE(slots.Locked(slot)) << "that was the file of the session before";
}

// T5: nothing that every worker reads names a session or lets anybody resume it.
TEST(SlotsTest, T5TheArenaTellsNoKeyOnlyItsHash) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  SessionKey key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(0xa0 + 7 * i);
  const uint32_t slot = *slots.Claim(KeyHash(key));
  slots.SetOwner(slot, {.pid = 4711, .uid = 7});
  const std::string_view seen(reinterpret_cast<const char*>(arena->slot_records()),
                              block::kArenaSlots * sizeof(block::SlotRecord));
  const base::Digest256 hash = KeyHash(key);
  for (size_t at = 0; at + 4 <= key.size(); ++at) {
    EXPECT_EQ(seen.find({reinterpret_cast<const char*>(key.data()) + at, 4}), seen.npos) << at;
  }
  EXPECT_NE(seen.find({reinterpret_cast<const char*>(hash.data()), hash.size()}), seen.npos);
}

// T5: the folder of the locks is the daemon's alone.
TEST(SlotsTest, T5NobodyElseEntersTheFolderOfTheLocks) {
  const ArenaPath path;
  const std::string folder = path.str() + ".locks";
  ASSERT_EQ(mkdir(folder.c_str(), 0777), 0);
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    const Files files(&slots, *slots.Claim(HashOf(1)));
    EXPECT_EQ(StatOf(folder).st_mode & 07777, 0700u);
    EXPECT_EQ(StatOf(folder + "/slot-0" + os::HoldKind()).st_mode & 07777, 0600u);
  }
  std::filesystem::remove_all(folder);
  ASSERT_EQ(symlink("/tmp", folder.c_str()), 0);
  const absl::Status linked = Arena::Open(SharedOptions(path)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(linked)) << linked;
  unlink(folder.c_str());
  if (geteuid() != 0) GTEST_SKIP() << "only root can make another user's folder";
  ASSERT_EQ(mkdir(folder.c_str(), 0777), 0);
  ASSERT_EQ(chown(folder.c_str(), 12345, 12345), 0);
  const absl::Status status = Arena::Open(SharedOptions(path)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr(folder + " belongs to user 12345, this is 0"));
}

// T5: pages of a worker whose lock cannot be found any more are not given to others.
TEST(SlotsTest, T5AnArenaWhoseLocksAreGoneIsReplaced) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    (void)slots.Claim(HashOf(1));
  }
  const std::string lock = path.str() + ".locks/slot-0" + os::HoldKind();
  std::filesystem::rename(lock, lock + ".kept");
  std::ofstream(lock) << "of another daemon";
  EXPECT_THAT(OpenOrDie(path)->replaced_why(), testing::HasSubstr("lock file of slot 0 is gone"));
  EXPECT_EQ(OpenOrDie(path)->replaced_why(), "");
}

// T5: a daemon of the other flavour of os does not see the locks of this one.
TEST(SlotsTest, T5AnArenaWithASlotThatTheOtherFlavourLocksIsReplaced) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    (void)slots.Claim(HashOf(1));
  }
  const std::string lock = path.str() + ".locks/slot-0";
  std::filesystem::rename(lock + os::HoldKind(), lock + (HoldsAreOfd() ? ".flock" : ""));
  EXPECT_THAT(OpenOrDie(path)->replaced_why(), testing::HasSubstr("lock file of slot 0 is gone"));
}

// As when somebody removes the file of a living daemon.
TEST(SlotsTest, T5ASecondDaemonOfOnePathDoesNotTakeTheFirstOnesLocks) {
  const ArenaPath path;
  const auto first = OpenOrDie(path);
  Slots slots(first.get());
  const uint32_t slot = *slots.Claim(HashOf(1));
  const Files files(&slots, slot);
  ASSERT_EQ(unlink(path.str().c_str()), 0);
  EXPECT_TRUE(absl::IsUnavailable(Arena::Open(SharedOptions(path)).status()));
  EXPECT_TRUE(slots.Locked(slot));
}

// The whole of it: the daemon is killed while the worker is stopped; the next daemon leaves slot
// and page alone, the worker goes on reading the right bytes, and when it ends the slot is free.
TEST(SlotsTest, ASlotOutlivesTheDaemonAndIsFoundByTheNext) {
  const ArenaPath path;
  DescriptorPipe to_worker;
  Signal mapped, go_on;
  uint64_t file_bytes = 0;
  {
    const auto arena = OpenOrDie(path);
    file_bytes = arena->file_bytes();
  }
  Child worker([&] {
    const auto [fd, offset] = to_worker.Receive();
    const auto [lock, unused] = to_worker.Receive();
    const auto* const map = static_cast<std::byte*>(MapReadOnly(fd, file_bytes));
    MapLock(lock);
    close(fd);
    close(lock);
    mapped.Send();
    go_on.Await();
    _exit(HasPayload(map + offset, 16 * kKiB, 3) ? 0 : 1);
  });
  Child daemon([&] {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    (void)slots.Claim(HashOf(70));  // its worker never comes
    const uint32_t slot = *slots.Claim(HashOf(71));
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    const block::Extent extent = Store(*arena, space, 3, 16 * kKiB);
    arena->marks(extent)->SetHolders(uint64_t{1} << slot);
    slots.SetOwner(slot, kOwner);
    const SlotFiles files = slots.OpenFor(slot).value();
    to_worker.Send(files.arena, arena->data_offset() + extent.offset);
    to_worker.Send(files.lock, 0);
    while (true) pause();
  });
  mapped.Await();
  worker.Signal(SIGSTOP);
  ASSERT_TRUE(worker.WaitStopped());
  daemon.Signal(SIGKILL);
  daemon.Wait();

  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const std::vector<HeldSlot> held = slots.Held();
  ASSERT_EQ(held.size(), 1u) << "only the session whose worker lives";
  EXPECT_EQ(held[0].slot, 1u);
  EXPECT_EQ(held[0].key_hash, HashOf(71));
  EXPECT_EQ(held[0].owner, kOwner);
  EXPECT_EQ(slots.in_use(), 1u);
  EXPECT_EQ(slots.Claim(HashOf(80)), 0u);
  EXPECT_EQ(slots.Claim(HashOf(81)), 2u) << "not the held one";
  EXPECT_EQ(arena->TakeFound()[0].holders, 2u);
  while (arena->Allocate(16 * kKiB, 16 * kKiB).ok()) {
  }
  slots.Rename(1, HashOf(82));
  EXPECT_EQ(slots.Held()[1].key_hash, HashOf(82));
  EXPECT_EQ(slots.Held()[1].owner, kOwner);
  worker.Signal(SIGCONT);
  go_on.Send();
  EXPECT_EQ(worker.Wait(), 0) << "the bytes it was reading";
  EXPECT_TRUE(Becomes([&] { return !slots.Locked(1); }));
  slots.Release(1);
  EXPECT_EQ(slots.in_use(), 2u);
}

TEST(SlotsTest, AllSixtyFourAreTakenThenNone) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  for (uint32_t i = 0; i < block::kArenaSlots; ++i) EXPECT_EQ(slots.Claim(HashOf(1)), i);
  EXPECT_EQ(slots.in_use(), 64u);
  EXPECT_EQ(slots.Claim(HashOf(1)), std::nullopt);
  slots.Release(17);
  EXPECT_EQ(slots.Claim(HashOf(1)), 17u);
}

// As a daemon leaves it that is killed while it writes the record.
TEST(SlotsTest, ASlotThatIsLockedAlthoughNobodyOwnsItIsNotGivenOut) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots before(arena.get());
  Files files(&before, *before.Claim(HashOf(1)));
  arena->slot_records()[0].in_use.store(0);
  Slots slots(arena.get());
  ASSERT_EQ(slots.Held().size(), 1u);
  EXPECT_EQ(slots.Held()[0].key_hash, base::Digest256{}) << "nobody can resume it";
  EXPECT_EQ(slots.Claim(HashOf(1)), 1u);
  files.Close();
  slots.Release(0);
  EXPECT_EQ(slots.Claim(HashOf(2)), 0u);
}

TEST(SlotsTest, SlotsOfWorkersThatEndedAreFreeAtTheNextDaemon) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    const Files files(&slots, *slots.Claim(HashOf(1)));
  }
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  EXPECT_THAT(slots.Held(), IsEmpty());
  EXPECT_EQ(arena->slot_records()[0].in_use.load(), 0u);
  EXPECT_EQ(slots.Claim(HashOf(2)), 0u);
  EXPECT_EQ(arena->slot_records()[0].in_use.load(), 1u);
}

TEST(SlotsTest, NoLockOfASessionStaysInTheFolderBehindIt) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    slots.Release(*slots.Claim(HashOf(1)));
  }
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(path.str() + ".locks")) {
    names.push_back(file.path().filename());
  }
  EXPECT_THAT(names, testing::ElementsAre("owner"));
}

}  // namespace
}  // namespace prefixd::ram
