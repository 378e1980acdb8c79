// Slots: who maps the arena, and whether that process still can read. The kernel says, no timer.
#include "ram/slots.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using testing::IsEmpty;

SessionKey KeyOf(uint8_t seed) {
  SessionKey key{};
  key.fill(std::byte{seed});
  return key;
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
  const int fd = slots.OpenFor(*slots.Claim({1}, KeyOf(1))).value();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(errno, EACCES);
  void* const map = MapReadOnly(fd, arena->file_bytes());
  EXPECT_EQ(mprotect(map, 4096, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(errno, EACCES);
  EXPECT_EQ(pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  munmap(map, arena->file_bytes());
  close(fd);
}

using SlotsDeathTest = testing::Test;
TEST(SlotsDeathTest, WritingThroughAWorkersMappingEndsTheWorker) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const int fd = slots.OpenFor(*slots.Claim({1}, KeyOf(1))).value();
  const block::Extent extent = arena->Allocate(4096, 4096).value();
  FillPayload(*arena, extent, 9);
  Child worker([&] {
    signal(SIGSEGV, SIG_DFL);  // a sanitizer would report it
    auto* const map = static_cast<volatile char*>(MapReadOnly(fd, arena->file_bytes()));
    map[arena->data_offset() + extent.offset] = 1;
  });
  EXPECT_EQ(worker.Wait(), 128 + SIGSEGV);
  EXPECT_TRUE(HasPayload(arena->data(extent), extent.bytes, 9));
  close(fd);
}

TEST(SlotsTest, TheLockLastsAsLongAsTheLastDescriptorOrMapping) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const uint32_t slot = *slots.Claim({1}, KeyOf(1));
  EXPECT_FALSE(slots.Locked(slot));
  const int fd = slots.OpenFor(slot).value();
  EXPECT_TRUE(slots.Locked(slot));
  EXPECT_FALSE(slots.Locked(slot + 1));
  void* const map = MapReadOnly(fd, arena->file_bytes());
  close(fd);
  EXPECT_TRUE(slots.Locked(slot)) << "the mapping still reads";
  munmap(map, arena->file_bytes());
  EXPECT_TRUE(Becomes([&] { return !slots.Locked(slot); }));
}

TEST(SlotsTest, AKilledWorkerUnlocksItsSlotAndAStoppedOneDoesNot) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const uint32_t slot = *slots.Claim({1}, KeyOf(1));
  const int fd = slots.OpenFor(slot).value();
  Signal mapped;
  Child worker([&] {
    MapReadOnly(fd, arena->file_bytes());
    close(fd);
    mapped.Send();
    while (true) pause();
  });
  mapped.Await();
  close(fd);
  EXPECT_TRUE(slots.Locked(slot));
  worker.Signal(SIGSTOP);
  ASSERT_TRUE(worker.WaitStopped());
  EXPECT_TRUE(slots.Locked(slot));
  worker.Signal(SIGKILL);
  EXPECT_TRUE(Becomes([&] { return !slots.Locked(slot); }));
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
    const auto* const map = static_cast<std::byte*>(MapReadOnly(fd, file_bytes));
    close(fd);
    mapped.Send();
    go_on.Await();
    _exit(HasPayload(map + offset, 16 * kKiB, 3) ? 0 : 1);
  });
  Child daemon([&] {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    (void)slots.Claim({70}, KeyOf(70));  // its worker never comes
    const uint32_t slot = *slots.Claim({71}, KeyOf(71));
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    const block::Extent extent = Store(*arena, space, 3, 16 * kKiB);
    arena->marks(extent)->holders.store(uint64_t{1} << slot);
    slots.SetPid(slot, 4711);
    to_worker.Send(slots.OpenFor(slot).value(), arena->data_offset() + extent.offset);
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
  EXPECT_EQ(held[0].session, (block::SessionId{71}));
  EXPECT_EQ(held[0].key, KeyOf(71));
  EXPECT_EQ(held[0].pid, 4711u);
  EXPECT_EQ(slots.in_use(), 1u);
  EXPECT_EQ(slots.Claim({80}, KeyOf(80)), 0u);
  EXPECT_EQ(slots.Claim({81}, KeyOf(81)), 2u) << "not the held one";
  EXPECT_EQ(arena->TakeFound()[0].holders, 2u);
  while (arena->Allocate(16 * kKiB, 16 * kKiB).ok()) {
  }
  slots.Rename(1, {82}, KeyOf(82), 5);
  EXPECT_EQ(arena->slot_records()[1].session.load(), 82u);
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
  for (uint32_t i = 0; i < block::kArenaSlots; ++i) EXPECT_EQ(slots.Claim({i + 1}, KeyOf(1)), i);
  EXPECT_EQ(slots.in_use(), 64u);
  EXPECT_EQ(slots.Claim({99}, KeyOf(1)), std::nullopt);
  slots.Release(17);
  EXPECT_EQ(slots.Claim({99}, KeyOf(1)), 17u);
}

TEST(SlotsTest, ASlotThatIsLockedAlthoughNobodyOwnsItIsNotGivenOut) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  const int fd = slots.OpenFor(0).value();
  EXPECT_EQ(slots.Claim({1}, KeyOf(1)), 1u);
  close(fd);
  EXPECT_EQ(slots.Claim({2}, KeyOf(2)), 0u);
}

TEST(SlotsTest, SlotsOfWorkersThatEndedAreFreeAtTheNextDaemon) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    close(slots.OpenFor(*slots.Claim({1}, KeyOf(1))).value());
  }
  const auto arena = OpenOrDie(path);
  Slots slots(arena.get());
  EXPECT_THAT(slots.Held(), IsEmpty());
  EXPECT_EQ(arena->slot_records()[0].session.load(), 0u);
  EXPECT_EQ(slots.Claim({2}, KeyOf(2)), 0u);
  EXPECT_EQ(arena->slot_records()[0].session.load(), 2u);
  EXPECT_EQ(arena->slot_records()[0].epoch, 1u);
}

}  // namespace
}  // namespace prefixd::ram
