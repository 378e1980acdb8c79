// Which pages stay in device memory and which go: no GPU needed.
#include "client/cuda/device_pages.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cuda/cases.h"

namespace prefixd::cuda {
namespace {

constexpr uint32_t kPage = 1024;

PageName Name(uint64_t of, uint64_t generation = 1, uint32_t bytes = kPage) {
  return {.high = of, .low = generation, .bytes = bytes};
}

// Finds the page or keeps it, and releases it at once.
bool Touch(DevicePages& pages, const PageName& name) {
  if (const auto found = pages.Find(name); found.page != nullptr) {
    pages.Release({found.page});
    return true;
  }
  KeptPage* const page = pages.Reserve(name);
  EXPECT_NE(page, nullptr);
  if (page == nullptr) return false;
  pages.Publish(page, nullptr);
  pages.Release({page});
  return false;
}

TEST(DevicePagesTest, TheLeastRecentlyUsedPageGoesFirst) {
  DevicePages pages(3 * kPage);
  for (uint64_t of = 1; of <= 3; ++of) EXPECT_FALSE(Touch(pages, Name(of)));
  EXPECT_TRUE(Touch(pages, Name(1)));
  EXPECT_FALSE(Touch(pages, Name(4))) << "evicts 2";
  EXPECT_TRUE(Touch(pages, Name(1)));
  EXPECT_TRUE(Touch(pages, Name(3)));
  EXPECT_FALSE(Touch(pages, Name(2)));
  const DevicePageCounts counts = pages.counts();
  EXPECT_EQ(counts.evictions, 2u);
  EXPECT_EQ(counts.evicted_bytes, 2u * kPage);
  EXPECT_EQ(counts.hits, 3u);
  EXPECT_EQ(counts.hit_bytes, 3u * kPage);
  EXPECT_EQ(counts.misses, 5u);
  EXPECT_EQ(counts.missed_bytes, 5u * kPage);
  EXPECT_EQ(counts.used_bytes, 3u * kPage);
}

TEST(DevicePagesTest, AStaleNameNeverHits) {
  DevicePages pages(8 * kPage);
  Touch(pages, Name(1, 1));
  EXPECT_EQ(pages.Find(Name(1, 2)).page, nullptr) << "another generation";
  EXPECT_EQ(pages.Find(Name(2, 1)).page, nullptr) << "other tokens";
  EXPECT_EQ(pages.Find(Name(1, 1, 2 * kPage)).page, nullptr) << "another size";
  EXPECT_TRUE(Touch(pages, Name(1, 1)));
}

TEST(DevicePagesTest, AReferencedPageIsNeverEvicted) {
  DevicePages pages(2 * kPage);
  Touch(pages, Name(1));
  Touch(pages, Name(2));
  KeptPage* const held = pages.Find(Name(1)).page;
  ASSERT_NE(held, nullptr);
  for (uint64_t of = 3; of < 9; ++of) {
    KeptPage* const page = pages.Reserve(Name(of));
    ASSERT_NE(page, nullptr);
    EXPECT_NE(page->offset, held->offset);
    EXPECT_EQ(pages.Reserve(Name(99)), nullptr) << "both are in use";
    pages.Release({page});  // never published: it goes
  }
  EXPECT_EQ(pages.counts().no_room, 6u);
  pages.Release({held});
  EXPECT_TRUE(Touch(pages, Name(1)));
}

TEST(DevicePagesTest, APageIsFoundOnlyOnceItIsPublishedAndWithItsFence) {
  DevicePages pages(4 * kPage);
  KeptPage* const page = pages.Reserve(Name(1));
  EXPECT_EQ(pages.Find(Name(1)).page, nullptr);
  const Fence fence = std::make_shared<int>(7);
  pages.Publish(page, fence);
  const auto found = pages.Find(Name(1));
  EXPECT_EQ(found.page, page);
  EXPECT_EQ(found.fence, fence);
  pages.Settle({page});
  EXPECT_EQ(pages.Find(Name(1)).fence, nullptr);
}

TEST(DevicePagesTest, OfTwoPagesWithOneNameTheFirstStays) {
  DevicePages pages(4 * kPage);
  KeptPage* const first = pages.Reserve(Name(1));
  KeptPage* const second = pages.Reserve(Name(1));
  pages.Publish(first, nullptr);
  pages.Publish(second, nullptr);
  EXPECT_EQ(pages.counts().pages, 2u);
  pages.Release({second});
  EXPECT_EQ(pages.counts().pages, 1u);
  EXPECT_EQ(pages.Find(Name(1)).page, first);
}

TEST(DevicePagesTest, WhatAStreamStillReadsStaysUntilItsEvent) {
  DevicePages pages(kPage);
  Touch(pages, Name(1));
  bool done = false;
  pages.ReleaseWhen({pages.Find(Name(1)).page}, [&] { return done; });
  EXPECT_EQ(pages.Reserve(Name(2)), nullptr);
  EXPECT_EQ(pages.counts().referenced_bytes, kPage);
  done = true;
  EXPECT_NE(pages.Reserve(Name(2)), nullptr);
}

TEST(DevicePagesTest, APageThatCannotFitEvictsNothing) {
  DevicePages pages(2 * kPage);
  Touch(pages, Name(1));
  EXPECT_EQ(pages.Reserve(Name(2, 1, 3 * kPage)), nullptr);
  EXPECT_EQ(pages.counts().evictions, 0u);
  EXPECT_TRUE(Touch(pages, Name(1)));
}

TEST(DevicePagesTest, WhatIsForgottenIsNotFoundAndItsRoomComesBack) {
  DevicePages pages(2 * kPage);
  Touch(pages, Name(1));
  Touch(pages, Name(2));
  KeptPage* const held = pages.Find(Name(2)).page;
  KeptPage* const on_its_way = pages.Reserve(Name(3));  // evicts 1
  pages.Forget();
  pages.Publish(on_its_way, nullptr);
  EXPECT_EQ(pages.Find(Name(3)).page, nullptr);
  pages.Release({on_its_way});
  EXPECT_EQ(pages.Find(Name(1)).page, nullptr);
  EXPECT_EQ(pages.Find(Name(2)).page, nullptr);
  EXPECT_EQ(pages.counts().used_bytes, kPage) << "the one that is in use";
  pages.Release({held});
  EXPECT_EQ(pages.counts().used_bytes, 0u);
}

// Pages of one size, so that what is evicted follows from the order of releases alone.
TEST(DevicePagesTest, ARandomSequenceHitsMissesAndEvictsAsASimpleListDoes) {
  Draw draw(21);
  constexpr size_t kRoom = 16;
  DevicePages pages(kRoom * kPage);
  std::vector<KeptPage*> held;
  std::deque<PageName> idle;
  std::map<uint64_t, uint32_t> used;  // references of a name's `high`
  uint64_t hits = 0, misses = 0, evictions = 0, no_room = 0;
  for (int step = 0; step < 20000; ++step) {
    if (held.size() > 20 || (!held.empty() && draw.Once(2))) {
      const size_t i = draw.Below(static_cast<uint32_t>(held.size()));
      const PageName name = held[i]->name;
      pages.Release({held[i]});
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      if (--used[name.high] == 0) {
        used.erase(name.high);
        idle.push_back(name);
      }
      continue;
    }
    const PageName name = Name(draw.From(1, 40));
    const auto at = std::find(idle.begin(), idle.end(), name);
    const bool there = at != idle.end() || used.count(name.high) > 0;
    const auto found = pages.Find(name);
    ASSERT_EQ(found.page != nullptr, there) << "step " << step;
    if (there) {
      ++hits;
      if (at != idle.end()) idle.erase(at);
      ++used[name.high];
      held.push_back(found.page);
      continue;
    }
    ++misses;
    KeptPage* const page = pages.Reserve(name);
    ASSERT_EQ(page != nullptr, used.size() < kRoom) << "step " << step;
    if (page == nullptr) {
      ++no_room;
      continue;
    }
    if (used.size() + idle.size() == kRoom) {
      idle.pop_front();
      ++evictions;
    }
    ++used[name.high];
    pages.Publish(page, nullptr);
    held.push_back(page);
  }
  const DevicePageCounts counts = pages.counts();
  EXPECT_EQ(counts.hits, hits);
  EXPECT_EQ(counts.misses, misses);
  EXPECT_EQ(counts.evictions, evictions);
  EXPECT_EQ(counts.no_room, no_room);
  EXPECT_EQ(counts.pages, used.size() + idle.size());
  EXPECT_EQ(counts.referenced_bytes, used.size() * kPage);
  EXPECT_GT(evictions, 1000u);
  EXPECT_GT(no_room, 0u);
}

// Writes each page's name where the page lies, as a load would write its bytes.
class Memory {
 public:
  explicit Memory(uint64_t bytes) : words_(bytes / 8) {}
  void Write(const KeptPage& page) {
    for (uint64_t at = page.offset; at < page.offset + page.name.bytes; at += 8) {
      words_[at / 8].store(page.name.high << 8 | page.name.low, std::memory_order_relaxed);
    }
  }
  bool Holds(const KeptPage& page) const {
    for (uint64_t at = page.offset; at < page.offset + page.name.bytes; at += 8) {
      if (words_[at / 8].load(std::memory_order_relaxed) != (page.name.high << 8 | page.name.low)) {
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::atomic<uint64_t>> words_;
};

void LoadAtRandom(DevicePages& pages, Memory& memory, uint32_t seed, uint64_t budget) {
  Draw draw(seed);
  std::vector<KeptPage*> held;
  for (int step = 0; step < 4000; ++step) {
    if (held.size() > 6 || (!held.empty() && draw.Once(3))) {
      EXPECT_TRUE(memory.Holds(*held.back())) << "somebody wrote to a page in use";
      if (draw.Once(2)) {
        pages.Release({held.back()});
      } else {
        pages.ReleaseWhen({held.back()}, [n = draw.Below(4)]() mutable { return n-- == 0; });
      }
      held.pop_back();
      continue;
    }
    // Sizes follow from the name, as they do of real pages.
    const uint64_t of = draw.From(1, 60);
    const PageName name = Name(of, draw.From(1, 3), static_cast<uint32_t>(128 * (1 + of % 9)));
    KeptPage* page = pages.Find(name).page;
    if (page == nullptr) {
      page = pages.Reserve(name);
      if (page == nullptr) continue;
      EXPECT_LE(page->offset + page->name.bytes, budget);
      memory.Write(*page);
      pages.Publish(page, nullptr);
    }
    EXPECT_TRUE(memory.Holds(*page)) << "page " << of << " has other bytes";
    held.push_back(page);
    if (draw.Once(500)) pages.Forget();
    const DevicePageCounts counts = pages.counts();
    EXPECT_LE(counts.used_bytes, budget);
    EXPECT_LE(counts.referenced_bytes, counts.used_bytes);
  }
  pages.Release(held);
}

TEST(DevicePagesTest, TwoThreadsReadRightBytesWithinTheBudget) {
  constexpr uint64_t kBudget = 16 * 1024;
  DevicePages pages(kBudget + 100);
  Memory memory(kBudget);
  std::thread other([&] { LoadAtRandom(pages, memory, 31, kBudget); });
  LoadAtRandom(pages, memory, 32, kBudget);
  other.join();
  const DevicePageCounts counts = pages.counts();
  EXPECT_EQ(counts.budget_bytes, kBudget);
  EXPECT_GT(counts.hits, 100u);
  EXPECT_GT(counts.evictions, 100u);
  pages.Forget();
  for (int i = 0; i < 4; ++i) pages.counts();  // lets the last events be done
  pages.Forget();
  EXPECT_EQ(pages.counts().used_bytes, 0u);
  EXPECT_NE(pages.Reserve(Name(1, 1, kBudget)), nullptr) << "all room is in one piece again";
}

}  // namespace
}  // namespace prefixd::cuda
