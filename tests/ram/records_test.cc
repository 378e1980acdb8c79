// Which records the next daemon believes.
#include <fcntl.h>

#include <cstring>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "ram/slots.h"
#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using block::PageRecord;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<uint64_t> Found(Arena& arena) {
  std::vector<uint64_t> seeds;
  for (const FoundPage& page : arena.TakeFound()) seeds.push_back(page.content.check / 77);
  return seeds;
}
std::vector<uint64_t> FoundByTheNext(const ArenaPath& path) { return Found(*OpenOrDie(path)); }

std::byte* RecordBytes(Arena& arena, block::Extent extent) {
  return reinterpret_cast<std::byte*>(arena.marks(extent)) - offsetof(PageRecord, marks);
}

// Flips each byte of the record's first `end` bytes that the check covers, and looks each time what
// the next daemon finds.
void FlipEveryByte(const ArenaPath& path, block::Extent extent, size_t end) {
  std::byte intact[sizeof(PageRecord)];
  {
    const auto arena = OpenOrDie(path);
    std::memcpy(intact, RecordBytes(*arena, extent), sizeof(intact));
  }
  for (size_t at = 0; at < end; ++at) {
    const bool marks = at >= offsetof(PageRecord, marks) &&
                       at < offsetof(PageRecord, marks) + sizeof(block::PageMarks);
    if (marks || (at >= 4 && at < 8)) continue;
    {
      const auto arena = OpenOrDie(path);
      std::byte* const record = RecordBytes(*arena, extent);
      std::memcpy(record, intact, sizeof(intact));
      record[at] ^= std::byte{0x10};
    }
    const auto arena = OpenOrDie(path);
    ASSERT_EQ(arena->TakeFound().size(), 1u) << "byte " << at;
    ASSERT_EQ(arena->stats().extents, 1u) << "byte " << at;
  }
}

TEST(RecordsTest, ARecordWithAnyByteWrongIsLeftOutAndItsExtentFree) {
  const ArenaPath path;
  block::Extent plain, with_keys;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    plain = Store(*arena, space, 3, 16 * kKiB);
    with_keys = Store(*arena, space, 5, 16 * kKiB);  // two content keys
  }
  FlipEveryByte(path, plain, offsetof(PageRecord, token) + 64 * 4);
  // The first is gone by now; it comes back as another page.
  {
    const auto arena = OpenOrDie(path);
    EXPECT_EQ(Store(*arena, 0, 6, 16 * kKiB), plain);
  }
  FlipEveryByte(path, with_keys, offsetof(PageRecord, content) + 2 * sizeof(block::ContentRecord));
}

TEST(RecordsTest, ARecordThatWasLeftOutDoesNotComeBack) {
  const ArenaPath path;
  block::Extent extent;
  std::byte* record = nullptr;
  {
    const auto arena = OpenOrDie(path);
    extent = Store(*arena, arena->AddSpace(SpaceIdOf(1), "one").value(), 3, 16 * kKiB);
    record = RecordBytes(*arena, extent);
    record[offsetof(PageRecord, serial)] ^= std::byte{1};
  }
  {
    const auto arena = OpenOrDie(path);
    EXPECT_THAT(Found(*arena), IsEmpty());
    EXPECT_EQ(arena->Allocate(16 * kKiB, 16 * kKiB).value(), extent);
    RecordBytes(*arena, extent)[offsetof(PageRecord, serial)] ^= std::byte{1};  // whole again
  }
  EXPECT_THAT(FoundByTheNext(path), IsEmpty());
}

TEST(RecordsTest, ClearMakesEveryRecordOfTheSpaceVoidAndLaterOnesCount) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t one = arena->AddSpace(SpaceIdOf(1), "one").value();
    const uint32_t two = arena->AddSpace(SpaceIdOf(2), "two").value();
    Store(*arena, one, 1, 16 * kKiB);
    Store(*arena, two, 2, 16 * kKiB);
    arena->ClearSpace(one);
    EXPECT_EQ(arena->AddSpace(SpaceIdOf(1), "one").value(), one);
    Store(*arena, one, 3, 16 * kKiB);
  }
  EXPECT_THAT(FoundByTheNext(path), ElementsAre(2, 3));
}

TEST(RecordsTest, APageThatIsBeingMovedIsFoundInBothPlaces) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    Store(*arena, space, 4, 16 * kKiB);
    Store(*arena, space, 4, 16 * kKiB);
  }
  EXPECT_THAT(FoundByTheNext(path), ElementsAre(4, 4));
}

TEST(RecordsTest, AnExtentThatIsPublishedAgainCarriesItsNewName) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    const block::Extent extent = Store(*arena, space, 5, 16 * kKiB);  // with keys
    const TestPage page = MakePage(6, space, 12 * kKiB);              // without
    arena->Publish(extent, page.content);
  }
  const auto arena = OpenOrDie(path);
  const std::vector<FoundPage> found = arena->TakeFound();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].content.check, 6u * 77);
  EXPECT_THAT(found[0].content.tokens.content, IsEmpty());
}

TEST(RecordsTest, BlocksThatARecordCannotHoldAreNotRecorded) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    TestPage page = MakePage(1, space, 16 * kKiB);
    page.tokens.resize(129);
    page.content.tokens.tokens = page.tokens;
    const block::Extent extent = Store(*arena, space, 2, 16 * kKiB);
    arena->Publish(extent, page.content);
    page = MakePage(1, space, 16 * kKiB);
    page.keys.assign(7, {.start = 1, .length = 1});
    page.content.tokens = {.tokens = page.tokens, .content = page.keys};
    arena->Publish(Store(*arena, space, 3, 16 * kKiB), page.content);
    page = MakePage(1, Arena::kNoSpace, 16 * kKiB);
    arena->Publish(Store(*arena, space, 4, 16 * kKiB), page.content);
    EXPECT_EQ(arena->marks(extent)->last_use.load(), 1'000'001) << "marks are kept all the same";
  }
  EXPECT_THAT(FoundByTheNext(path), IsEmpty());
}

TEST(RecordsTest, ADamagedSpaceTakesItsPagesAndThoseBehindItAlong) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    for (uint64_t i = 1; i <= 3; ++i) {
      Store(*arena, arena->AddSpace(SpaceIdOf(i), "a model's identity").value(), i, 16 * kKiB);
    }
  }
  {
    const auto arena = OpenOrDie(path);
    EXPECT_EQ(arena->Spaces().size(), 3u);
    auto* const map = reinterpret_cast<std::byte*>(arena->header());
    map[arena->header()->spaces_offset + 56 + 24 + 56 + 3] ^= std::byte{1};  // in the second
  }
  const auto arena = OpenOrDie(path);
  EXPECT_EQ(arena->Spaces().size(), 1u);
  EXPECT_THAT(Found(*arena), ElementsAre(1));
  EXPECT_EQ(arena->AddSpace(SpaceIdOf(3), "a model's identity").value(), (56u + 24) / 8);
}

TEST(RecordsTest, TheSpaceTableHasAnEndAndTakesMemoryAsItGrows) {
  const ArenaPath path;
  uint32_t added = 0;
  {
    const auto arena = OpenOrDie(path);
    const uint64_t before = arena->stats().table_bytes;
    const std::string identity(10'000, 'i');
    absl::StatusOr<uint32_t> space = 0;
    for (uint64_t i = 0; space.ok(); ++i) {
      space = arena->AddSpace(SpaceIdOf(i), identity);
      if (space.ok()) {
        EXPECT_EQ(*space, added++ * (56 + 10'000) / 8);
      }
    }
    EXPECT_TRUE(absl::IsResourceExhausted(space.status()));
    EXPECT_GT(added, 90u);
    EXPECT_GE(arena->stats().table_bytes, before + added * 10'000);
    EXPECT_EQ(arena->AddSpace(SpaceIdOf(3), identity).value(), 3u * (56 + 10'000) / 8);
  }
  const auto arena = OpenOrDie(path);
  EXPECT_EQ(arena->Spaces().size(), added);
  EXPECT_EQ(arena->AddSpace(SpaceIdOf(added - 1), "known").value(),
            (added - 1) * (56 + 10'000) / 8);
}

// T3: 20,000 spaces in turn in a table that has room for 100.
TEST(RecordsTest, SpacesThatAreForgottenGiveTheirRoomToOthers) {
  const ArenaPath path;
  const auto arena = OpenOrDie(path);
  const uint64_t before = arena->stats().table_bytes;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const auto space = arena->AddSpace(SpaceIdOf(i), std::string(10'000 - i % 7 * 1000, 'i'));
    ASSERT_TRUE(space.ok()) << space.status();
    if (i >= 30) arena->RemoveSpace(arena->AddSpace(SpaceIdOf(i - 30), "known").value());
  }
  EXPECT_EQ(arena->Spaces().size(), 30u);
  for (uint64_t i = 19'970; i < 20'000; ++i) {
    arena->RemoveSpace(arena->AddSpace(SpaceIdOf(i), "known").value());
  }
  EXPECT_THAT(arena->Spaces(), IsEmpty());
  EXPECT_LE(arena->stats().table_bytes, before + 4096);
}

// T3
TEST(RecordsTest, APageOfAForgottenSpaceIsNotTheNextSpacesAtItsPlace) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t one = arena->AddSpace(SpaceIdOf(1), "identity").value();
    Store(*arena, one, 1, 16 * kKiB);  // its record is still there when its space goes
    arena->RemoveSpace(one);
    EXPECT_EQ(arena->AddSpace(SpaceIdOf(2), "identity").value(), one);
    Store(*arena, one, 2, 16 * kKiB);
  }
  const auto arena = OpenOrDie(path);
  EXPECT_THAT(Found(*arena), ElementsAre(2));
}

TEST(RecordsTest, TheSpacesThatAreFoundAreThoseThatWereNotForgotten) {
  const ArenaPath path;
  std::map<uint64_t, std::string> want;
  uint64_t random = 1;
  for (int life = 0; life < 20; ++life) {
    const auto arena = OpenOrDie(path);
    std::map<uint64_t, std::string> found;
    for (const FoundSpace& space : arena->Spaces()) {
      uint64_t seed = 0;
      std::memcpy(&seed, space.id.data(), sizeof(seed));
      found[seed] = space.identity;
    }
    ASSERT_TRUE(found == want) << "life " << life << ": " << found.size() << " spaces, stored "
                               << want.size();
    for (int i = 0; i < 500; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const uint64_t seed = random >> 40 & 127;
      if (want.contains(seed)) {
        arena->RemoveSpace(arena->AddSpace(SpaceIdOf(seed), want[seed]).value());
        want.erase(seed);
      } else {
        const std::string identity(1 + (random >> 33 & 2047), static_cast<char>('a' + seed % 26));
        if (arena->AddSpace(SpaceIdOf(seed), identity).ok()) want[seed] = identity;
      }
    }
  }
}

TEST(RecordsTest, MarksThatChangedInPlaceAreFoundAndGoWithTheExtent) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    const block::Extent hot = Store(*arena, space, 1, 16 * kKiB);
    Store(*arena, space, 2, 16 * kKiB);
    arena->marks(hot)->last_use.store(9'000'000);
    arena->marks(hot)->ends[0].store(uint64_t{1} << 63);
    arena->marks(hot)->ends[1].store(1);
  }
  const auto arena = OpenOrDie(path);
  const std::vector<FoundPage> found = arena->TakeFound();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].content.last_use, 9'000'000) << "coldest first";
  EXPECT_THAT(found[1].content.ends, ElementsAre(64, 65));
  arena->Free(found[1].extent);
  const block::Extent again = arena->Allocate(16 * kKiB, 16 * kKiB).value();
  EXPECT_EQ(again, found[1].extent);
  EXPECT_EQ(arena->marks(again)->last_use.load(), 0);
  EXPECT_EQ(arena->marks(again)->ends[1].load(), 0u);
}

// The lease rule: an extent is reused only when no process can be reading it.
TEST(RecordsTest, HoldersAreFoundAsLongAsTheirSlotIsLocked) {
  const ArenaPath path;
  SlotFiles worker;
  uint32_t live = 0, dead = 0;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    live = *slots.Claim({});
    dead = *slots.Claim({});
    worker = slots.OpenFor(live).value();
    const SlotFiles ended = slots.OpenFor(dead).value();
    close(ended.arena);
    close(ended.lock);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    const block::Extent extent = Store(*arena, space, 1, 16 * kKiB);
    arena->marks(extent)->SetHolders(uint64_t{1} << live | uint64_t{1} << dead);
  }
  {
    const auto arena = OpenOrDie(path);
    const std::vector<FoundPage> found = arena->TakeFound();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].holders, uint64_t{1} << live);
    EXPECT_EQ(arena->marks(found[0].extent)->holders.load(), uint64_t{1} << live);
  }
  close(worker.arena);
  close(worker.lock);
  EXPECT_EQ(OpenOrDie(path)->TakeFound()[0].holders, 0u);
}

// T6: who reads a page is one word. Where that is damaged, everybody who may read at all counts.
TEST(RecordsTest, T6DamagedHoldersCountAsHeldByEveryLockedSlot) {
  using Damage = void (*)(PageRecord*);
  const Damage zeros = [](PageRecord* record) {
    std::memset(static_cast<void*>(record), 0, sizeof(*record));
  };
  const Damage noise = [](PageRecord* record) {
    std::memset(static_cast<void*>(record), 0x5a, sizeof(*record));
  };
  const Damage lost_bit = [](PageRecord* record) { record->marks.holders = 0; };
  for (const Damage damage : {zeros, noise, lost_bit}) {
    const ArenaPath path;
    SlotFiles worker;
    uint32_t slot = 0;
    block::Extent extent;
    {
      const auto arena = OpenOrDie(path);
      Slots slots(arena.get());
      slot = *slots.Claim({});
      worker = slots.OpenFor(slot).value();
      const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
      extent = Store(*arena, space, 1, 16 * kKiB);
      arena->marks(extent)->SetHolders(uint64_t{1} << slot);
      damage(reinterpret_cast<PageRecord*>(RecordBytes(*arena, extent)));
    }
    {
      const auto arena = OpenOrDie(path);
      uint64_t holders = 0;
      size_t there = 0;
      for (const FoundPage& page : arena->TakeFound()) {
        if (page.extent != extent) continue;
        ++there;
        holders = page.holders;
      }
      for (const HeldExtent& held : arena->TakeHeld()) {
        if (held.extent != extent) continue;
        ++there;
        holders = held.holders;
      }
      EXPECT_EQ(there, 1u) << "the extent stays allocated";
      EXPECT_EQ(holders, uint64_t{1} << slot);
    }
    close(worker.arena);
    close(worker.lock);
    const auto arena = OpenOrDie(path);  // nobody reads any more
    EXPECT_TRUE(arena->TakeHeld().empty());
  }
}

// Extents that were never used are zeros on a fresh tmpfs, which must not count as damage.
TEST(RecordsTest, FreeExtentsOfACutSlabAreHeldByNobodyAfterARestart) {
  const ArenaPath path;
  SlotFiles worker;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    worker = slots.OpenFor(*slots.Claim({})).value();
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    Store(*arena, space, 1, 16 * kKiB);
  }
  const auto arena = OpenOrDie(path);
  EXPECT_EQ(arena->TakeFound().size(), 1u);
  EXPECT_TRUE(arena->TakeHeld().empty());
  close(worker.arena);
  close(worker.lock);
}

TEST(RecordsTest, AHeldExtentWhoseNameIsVoidStaysAllocatedUntilItsSlotIsUnlocked) {
  const ArenaPath path;
  SlotFiles worker;
  block::Extent extent;
  {
    const auto arena = OpenOrDie(path);
    Slots slots(arena.get());
    const uint32_t slot = *slots.Claim({});
    worker = slots.OpenFor(slot).value();
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    extent = Store(*arena, space, 1, 16 * kKiB);
    Store(*arena, space, 2, 16 * kKiB);
    arena->marks(extent)->holders.store(uint64_t{1} << slot);
    arena->ClearSpace(space);
  }
  for (int restart = 0; restart < 2; ++restart) {
    const auto arena = OpenOrDie(path);
    EXPECT_THAT(arena->TakeFound(), IsEmpty());
    const std::vector<HeldExtent> held = arena->TakeHeld();
    ASSERT_EQ(held.size(), 1u);
    EXPECT_EQ(held[0].extent, extent);
    EXPECT_EQ(held[0].holders, 1u);
    EXPECT_NE(arena->Allocate(16 * kKiB, 16 * kKiB).value(), extent);
  }
  close(worker.arena);
  close(worker.lock);
  const auto arena = OpenOrDie(path);
  EXPECT_THAT(arena->TakeHeld(), IsEmpty());
  EXPECT_EQ(arena->stats().extents, 0u);
}

TEST(RecordsTest, APrivateArenaKeepsNoRecords) {
  Arena::Options options;
  options.capacity_bytes = kMiB;
  const auto arena = OpenOrDie(options);
  EXPECT_FALSE(arena->shared());
  EXPECT_EQ(arena->AddSpace(SpaceIdOf(1), "one").value(), Arena::kNoSpace);
  const block::Extent extent = Store(*arena, Arena::kNoSpace, 1, 16 * kKiB);
  EXPECT_EQ(arena->marks(extent), nullptr);
  EXPECT_EQ(arena->header(), nullptr);
  EXPECT_EQ(arena->fd(), -1);
  EXPECT_EQ(arena->stats().table_bytes, 0u);
  EXPECT_TRUE(absl::IsFailedPrecondition(arena->OpenReadOnly().status()));
  EXPECT_FALSE(arena->BackOneMore());
}

}  // namespace
}  // namespace prefixd::ram
