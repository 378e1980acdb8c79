// What one daemon published is found by the next, whatever ended the first. (R7, R3, R5)
#include <signal.h>

#include <algorithm>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/ram/shared_arena.h"

namespace prefixd::ram {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

void ExpectSame(const PageContent& found, const PageContent& stored) {
  EXPECT_EQ(found.name.block, stored.name.block);
  EXPECT_EQ(found.name.group, stored.name.group);
  EXPECT_EQ(found.name.part, stored.name.part);
  EXPECT_EQ(found.name.rung, stored.name.rung);
  EXPECT_EQ(found.name.tokens, stored.name.tokens);
  EXPECT_EQ(found.space, stored.space);
  EXPECT_EQ(found.parent, stored.parent);
  EXPECT_EQ(found.serial, stored.serial);
  EXPECT_EQ(found.parent_serial, stored.parent_serial);
  EXPECT_EQ(found.first_token, stored.first_token);
  EXPECT_EQ(found.page_bytes, stored.page_bytes);
  EXPECT_EQ(found.payload_bytes, stored.payload_bytes);
  EXPECT_EQ(found.check, stored.check);
  EXPECT_THAT(found.tokens.tokens, testing::ElementsAreArray(stored.tokens.tokens));
  EXPECT_THAT(found.tokens.content, testing::ElementsAreArray(stored.tokens.content));
  EXPECT_EQ(found.ends, stored.ends);
  EXPECT_EQ(found.last_use, stored.last_use);
}

uint64_t SeedOf(const FoundPage& page) { return page.content.check / 77; }

std::vector<uint64_t> SeedsOf(const std::vector<FoundPage>& pages) {
  std::vector<uint64_t> seeds;
  for (const FoundPage& page : pages) seeds.push_back(SeedOf(page));
  return seeds;
}

TEST(AdoptTest, PagesOfADaemonThatWasKilledAreFoundWithTheirNamesAndBytes) {
  const ArenaPath path;
  Signal stored;
  Child daemon([&] {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(5), "identity five").value();
    for (uint64_t seed = 1; seed <= 20; ++seed) Store(*arena, space, seed, 20 * kKiB);
    stored.Send();
    pause();
  });
  stored.Await();
  daemon.Signal(SIGKILL);
  EXPECT_EQ(daemon.Wait(), 128 + SIGKILL);

  const auto arena = OpenOrDie(path);
  EXPECT_EQ(arena->replaced_why(), "");
  ASSERT_EQ(arena->Spaces().size(), 1u);
  EXPECT_EQ(arena->Spaces()[0].id, SpaceIdOf(5));
  EXPECT_EQ(arena->Spaces()[0].identity, "identity five");
  const std::vector<FoundPage> found = arena->TakeFound();
  ASSERT_EQ(found.size(), 20u);
  for (size_t i = 0; i < found.size(); ++i) {
    const uint64_t seed = i + 1;  // coldest first
    ExpectSame(found[i].content, MakePage(seed, 0, 20 * kKiB).content);
    EXPECT_EQ(found[i].content.name.space, SpaceIdOf(5));
    EXPECT_TRUE(HasPayload(arena->data(found[i].extent), found[i].extent.bytes, seed));
  }
  EXPECT_EQ(arena->stats().extents, 20u);
  EXPECT_THAT(arena->TakeFound(), IsEmpty()) << "once";
}

TEST(AdoptTest, FoundExtentsAreNotGivenOutAgainUntilTheyAreFreed) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    for (uint64_t seed = 1; seed <= 10; ++seed) Store(*arena, space, seed, 64 * kKiB);
  }
  const auto arena = OpenOrDie(path);
  std::vector<FoundPage> found = arena->TakeFound();
  ASSERT_EQ(found.size(), 10u);
  std::vector<block::Extent> taken;
  for (const FoundPage& page : found) taken.push_back(page.extent);
  while (true) {
    const absl::StatusOr<block::Extent> extent = arena->Allocate(64 * kKiB, 64 * kKiB);
    if (!extent.ok()) break;
    EXPECT_THAT(taken, testing::Not(testing::Contains(*extent)));
    taken.push_back(*extent);
  }
  for (const block::Extent extent : taken) arena->Free(extent);
  EXPECT_EQ(arena->stats().extents, 0u);
}

TEST(AdoptTest, PagesThatWereNotPublishedOrWereFreedAreGone) {
  const ArenaPath path;
  {
    const auto arena = OpenOrDie(path);
    const uint32_t space = arena->AddSpace(SpaceIdOf(1), "one").value();
    const block::Extent freed = Store(*arena, space, 1, 16 * kKiB);
    Store(*arena, space, 2, 16 * kKiB);
    FillPayload(*arena, arena->Allocate(16 * kKiB, 16 * kKiB).value(), 3);  // no record
    arena->Free(freed);
  }
  const auto arena = OpenOrDie(path);
  EXPECT_THAT(SeedsOf(arena->TakeFound()), ElementsAre(2));
  EXPECT_EQ(arena->stats().extents, 1u);
}

}  // namespace
}  // namespace prefixd::ram
