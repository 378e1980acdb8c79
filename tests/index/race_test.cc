// Four threads over one index, and one that follows its events. Pages are words that say whose they
// are, so whoever reads an extent that was given to somebody else while it was leased sees it. Runs
// under ThreadSanitizer.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "event_follower.h"
#include "index/prefix_index.h"
#include "index_fixture.h"

namespace prefixd::index {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr size_t kExtents = 64;

// Extents of one word each. Plain words: if two threads ever touch one unordered, TSan says so.
class TinyArena {
 public:
  TinyArena() {
    for (size_t i = 0; i < kExtents; ++i) free_.push_back(i);
  }
  block::Extent Allocate(uint64_t word) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return {};
    const size_t slot = free_.back();
    free_.pop_back();
    words_[slot] = word;
    return {slot * block::kExtentUnit, block::kExtentUnit};
  }
  void Free(block::Extent extent) {
    const std::lock_guard lock(mutex_);
    words_[extent.offset / block::kExtentUnit] = 0;
    if (marks(extent)->holders.load() != 0) ++freed_while_held_;
    free_.push_back(extent.offset / block::kExtentUnit);
  }
  uint64_t Read(block::Extent extent) const { return words_[extent.offset / block::kExtentUnit]; }
  block::PageMarks* marks(block::Extent extent) {
    return &marks_[extent.offset / block::kExtentUnit];
  }
  uint64_t freed_while_held() const { return freed_while_held_; }
  size_t free_extents() const {
    const std::lock_guard lock(mutex_);
    return free_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<size_t> free_;
  std::array<uint64_t, kExtents> words_{};
  std::array<block::PageMarks, kExtents> marks_{};
  std::atomic<uint64_t> freed_while_held_{0};
};

// What a page of this block holds: its hash and how many tokens it has.
uint64_t WordOf(const block::BlockHash& hash, uint32_t tokens) {
  uint64_t word;
  std::memcpy(&word, hash.data(), sizeof(word));
  return (word ^ tokens) | 1;
}

class Race {
 public:
  Race() { space_ = index_.AddSpace({.id = {}, .block_tokens = kBlockTokens, .rungs = {1}}); }

  void Run(uint32_t seed) {
    std::mt19937 random(seed);
    const block::SessionId session{seed};
    // At least so often, and on until pages have also gone to SSD and come back.
    for (int i = 0; i < 3000 || (promotions_ < 200 && i < 1'000'000); ++i) {
      const Tokens tokens = Pick(random);
      switch (random() % 9) {
        case 0:
          (void)index_.Match(space_, {tokens, {}}, {}, session);
          break;
        case 1:
        case 2:
          Write(tokens, session);
          break;
        case 3:
        case 4:
          Read(tokens, session, random);
          break;
        case 5:
          Spill(random);
          break;
        case 6:
          Move(random);
          break;
        default:
          GiveUp(random);
          break;
      }
    }
    (void)index_.Release(kept_[seed]);
  }

  // A router's thread: reads events, and now and then begins anew. Ends with what is stored.
  void Follow(const std::atomic<bool>& ended) {
    EventFollower follower(&index_);
    for (uint32_t i = 0; !ended; ++i) {
      if (i % 500 == 0) follower.Connect(i % 1000 == 0);
      follower.ReadOne();
    }
    follower.ReadAll();
    EXPECT_TRUE(follower.blocks() == DumpOf(index_));
    EXPECT_GT(follower.snapshots(), 1u);
  }

  void ExpectNothingLost() {
    EXPECT_TRUE(index_.Validate().ok()) << index_.Validate();
    while (index_.EvictOne(true).has_value()) {
    }
    FreeAll();
    EXPECT_EQ(arena_.free_extents(), kExtents);
    EXPECT_EQ(wrong_reads_, 0u);
    EXPECT_EQ(missing_bits_, 0u);
    EXPECT_EQ(arena_.freed_while_held(), 0u);
    EXPECT_GT(own_, 0u);
    EXPECT_GT(moves_, 0u);
    EXPECT_GT(good_reads_, 0u);
    EXPECT_GE(promotions_, 200u);
  }

 private:
  static Tokens Pick(std::mt19937& random) {
    Tokens tokens;
    const size_t size = 1 + random() % 70;
    while (tokens.size() < size) tokens.push_back(random() % 12 == 0 ? 1 : 0);
    return tokens;
  }

  void GiveUp(std::mt19937& random) {
    index_.EvictOne(random() % 8 == 0);
    FreeAll();
    if (random() % 256 == 0) index_.DropSsdRange(1, sequence_.load() / 2);
    if (random() % 512 == 0) index_.Clear(space_);
    if (random() % 512 == 0) index_.TrimMemory(0);
  }

  void FreeAll() {
    for (const block::Extent& extent : index_.TakeFreed()) arena_.Free(extent);
  }

  void Write(const Tokens& tokens, block::SessionId session) {
    const auto reserved = index_.Reserve(space_, {tokens, {}}, {}, session);
    if (!reserved.ok()) return;
    const block::ReservationId id = reserved->plan.reservation;
    for (uint32_t i = 0; i < reserved->plan.blocks.size(); ++i) {
      const block::BlockPlan& plan = reserved->plan.blocks[i];
      if (plan.state == block::BlockState::kPresent) continue;
      const block::Extent extent = arena_.Allocate(WordOf(reserved->hashes[i], plan.tokens));
      if (!extent) break;
      const NewPage page{.group = 0,
                         .rung = 0,
                         .extent = extent,
                         .check = 1,
                         .page_bytes = 8,
                         .payload_bytes = 8,
                         .marks = arena_.marks(extent)};
      if (!index_.Publish(id, i, {&page, 1}).ok()) {
        arena_.Free(extent);
        break;
      }
    }
    const auto size = static_cast<uint32_t>(tokens.size());
    (void)index_.AddEnd(id, size);
    const Acquired own = index_.LeasePublished(id, 0, size, SlotOf(session));
    (void)index_.CloseReservation(id);
    if (!own.lease) return;
    ++own_;
    for (const PageInfo& page : own.pages) Check(page, session);
    EXPECT_TRUE(index_.Release(own.lease).ok());
  }

  // Sessions map the arena, all in one slot each.
  static uint32_t SlotOf(block::SessionId session) {
    return static_cast<uint32_t>(session.value * 13);
  }
  void Check(const PageInfo& page, block::SessionId session) {
    const bool right = arena_.Read(page.extent) == WordOf(page.name.block, page.name.tokens);
    ++(right ? good_reads_ : wrong_reads_);
    const uint64_t holders = arena_.marks(page.extent)->holders.load();
    if ((holders >> SlotOf(session) & 1) == 0) ++missing_bits_;
  }

  // What nobody holds changes its place; the copy is made from what the page must say.
  void Move(std::mt19937& random) {
    const uint64_t begin = random() % kExtents * block::kExtentUnit;
    for (const PageInfo& page : index_.PickMovable(begin, begin + 8 * block::kExtentUnit)) {
      const block::Extent to = arena_.Allocate(WordOf(page.name.block, page.name.tokens));
      if (!to) return;
      if (index_.FinishMove(page.ref, page.extent, to, arena_.marks(to))) {
        ++moves_;
      } else {
        arena_.Free(to);
      }
    }
    FreeAll();
  }

  void Read(const Tokens& tokens, block::SessionId session, std::mt19937& random) {
    const MatchOptions options{.selection = {}, .slot = SlotOf(session)};
    const Acquired acquired = index_.Acquire(space_, {tokens, {}}, options, session);
    if (!acquired.lease) return;
    CheckAll(acquired.pages, session, random);
    // It stays until the next.
    block::LeaseId& kept = kept_[session.value];
    if (kept) (void)index_.Release(kept);
    kept = acquired.lease;
    const auto listed = index_.LeasedPages(kept, {}, acquired.answer.restorable_tokens);
    ASSERT_TRUE(listed.ok()) << listed.status();
    ASSERT_EQ(listed->size(), acquired.pages.size());
    CheckAll(*listed, session, random);
  }

  // As far as they can be had in RAM.
  void CheckAll(const std::vector<PageInfo>& pages, block::SessionId session,
                std::mt19937& random) {
    for (PageInfo page : pages) {
      if (page.state == PageState::kSsd) Promote(page, random);
      if (page.state == PageState::kPromoting || page.state == PageState::kSsd) {
        const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        page = index_.WaitWhilePromoting(page.ref, soon);
      }
      if (!InRam(page.state)) return;
      Check(page, session);
    }
  }

  void Promote(const PageInfo& page, std::mt19937& random) {
    if (!index_.BeginPromotion(page.ref)) return;
    const uint64_t word = WordOf(page.name.block, page.name.tokens);
    const block::Extent extent = random() % 8 == 0 ? block::Extent{} : arena_.Allocate(word);
    if (extent) {
      ++promotions_;
      index_.FinishPromotion(page.ref, extent, arena_.marks(extent));
    } else {
      index_.FailPromotion(page.ref, random() % 2 == 0 ? PrefixIndex::PromotionFailure::kCorrupt
                                                       : PrefixIndex::PromotionFailure::kTryAgain);
    }
  }

  void Spill(std::mt19937& random) {
    std::vector<SpillBlock> blocks = index_.PickSpill(64);
    std::vector<SpilledPage> pages;
    for (SpillBlock& block : blocks) {
      for (const PageInfo& page : block.pages) {
        const bool right = arena_.Read(page.extent) == WordOf(page.name.block, page.name.tokens);
        ++(right ? good_reads_ : wrong_reads_);
        pages.push_back({page.ref, ++sequence_});
      }
      block.record_sequence = ++sequence_;
    }
    random() % 8 == 0 ? index_.AbortSpill(blocks) : index_.FinishSpill(blocks, pages);
  }

  PrefixIndex index_{PrefixIndex::Options{}};
  block::SpaceHandle space_;
  TinyArena arena_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> good_reads_{0}, wrong_reads_{0}, promotions_{0};
  std::atomic<uint64_t> missing_bits_{0}, own_{0}, moves_{0};
  std::array<block::LeaseId, 5> kept_;  // by session; its own thread's
};

TEST(IndexRaceTest, NobodyReadsAnExtentThatSomebodyElseGot) {
  Race race;
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 4; ++seed) threads.emplace_back([&, seed] { race.Run(seed); });
  std::atomic<bool> ended = false;
  std::thread follows([&] { race.Follow(ended); });
  for (std::thread& thread : threads) thread.join();
  ended = true;
  follows.join();
  race.ExpectNothingLost();
}

}  // namespace
}  // namespace prefixd::index
