// Sessions take hold of pages and drop them by the real index, while others do so too and a daemon
// gives up what nobody holds and stores something else there.
#include "gtest/gtest.h"

#include "index/prefix_index.h"
#include "tests/ram/litmus.h"

namespace prefixd::ram {
namespace {

constexpr uint32_t kSequences = 8, kTokens = 16, kThreads = 2;
constexpr uint64_t kReadsOfALease = 100;

class HoldersLitmus {
 public:
  HoldersLitmus() {
    space_ = index_.AddSpace({.id = SpaceIdOf(2), .block_tokens = kTokens, .rungs = {1}});
    for (uint32_t i = 0; i < kSequences; ++i) sequences_.emplace_back(kTokens, i);
  }

  void Run(uint64_t operations) {
    std::vector<std::thread> sessions;
    for (uint32_t i = 0; i < kThreads; ++i) {
      sessions.emplace_back([this, i, operations] { Hold(i, operations / kThreads); });
    }
    while (running_.load(std::memory_order_acquire) > 0) Replace();
    for (std::thread& session : sessions) session.join();
    EXPECT_TRUE(index_.Validate().ok()) << index_.Validate();
    EXPECT_GT(leases_, 0u);
    EXPECT_GT(stored_, kSequences) << "pages were given up and stored anew";
    std::cout << reads_ + 2 * leases_ + 2 * stored_ << " operations: " << leases_
              << " leases taken and dropped, the holders read " << reads_
              << " times under them, pages stored " << stored_ << " times\n";
  }

 private:
  // The daemon: gives up what nobody holds, and stores what is missing.
  void Replace() {
    index_.EvictOne(true);
    for (const block::Extent extent : index_.TakeFreed()) {
      verdict_.Require(arena().marks(extent)->ReadHolders() == 0, "freed while somebody holds it");
      WritePayload(arena().data(extent), 0);
      arena().Free(extent);
    }
    for (const std::vector<block::Token>& tokens : sequences_) Store(tokens);
    std::this_thread::yield();
  }

  void Store(const std::vector<block::Token>& tokens) {
    const auto reserved = index_.Reserve(space_, {tokens, {}}, {}, block::SessionId{99});
    if (!verdict_.Require(reserved.ok(), "a reservation was refused")) return;
    const block::ReservationId id = reserved->plan.reservation;
    if (reserved->plan.blocks[0].state != block::BlockState::kPresent) Publish(id);
    (void)index_.AddEnd(id, kTokens);
    (void)index_.CloseReservation(id);
  }

  void Publish(block::ReservationId id) {
    const auto extent = arena().Allocate(kLitmusPage, kLitmusPage);
    if (!verdict_.Require(extent.ok(), "the arena has room for all")) return;
    const uint64_t seed = ++stored_;
    pages_.Store(arena(), *extent, static_cast<uint32_t>(seed % KnownPages::kCount));
    WritePayload(arena().data(*extent), seed);
    const index::NewPage page{.extent = *extent,
                              .check = seed,
                              .page_bytes = kLitmusPage,
                              .payload_bytes = kLitmusPage,
                              .marks = arena().marks(*extent)};
    verdict_.Require(index_.Publish(id, 0, {&page, 1}).ok(), "a page was not published");
  }

  // A session of this slot: what it holds stays, and the words say so.
  void Hold(uint32_t slot, uint64_t operations) {
    const block::SessionId session{slot + 1};
    uint64_t reads = 0, leases = 0;
    for (uint64_t i = 0; reads < operations && !verdict_.bad(); ++i) {
      const auto& tokens = sequences_[Mix(slot, i) % kSequences];
      const index::MatchOptions options{.selection = {}, .slot = slot};
      const index::Acquired acquired = index_.Acquire(space_, {tokens, {}}, options, session);
      if (!acquired.lease) {
        std::this_thread::yield();
        continue;
      }
      ++leases;
      reads += Read(acquired.pages[0], slot);
      verdict_.Require(index_.Release(acquired.lease).ok(), "a lease was lost");
    }
    reads_ += reads;
    leases_ += leases;
    running_.fetch_sub(1, std::memory_order_release);
  }

  uint64_t Read(const index::PageInfo& page, uint32_t slot) {
    const block::PageMarks& marks = view_.marks(page.extent);
    for (uint64_t i = 0; i < kReadsOfALease; ++i) {
      if ((marks.ReadHolders() >> slot & 1) == 0) verdict_.Fail("a holder's bit is missing");
    }
    verdict_.Require(IsPayload(view_.data(page.extent), page.check),
                     "a leased page was overwritten");
    return kReadsOfALease;
  }

  Arena& arena() { return *stage_.arena; }

  LitmusArena stage_;
  const View view_{*stage_.arena, *stage_.mapping};
  const KnownPages pages_{*stage_.arena, *stage_.mapping};
  index::PrefixIndex index_{{}};
  block::SpaceHandle space_;
  std::vector<std::vector<block::Token>> sequences_;
  uint64_t stored_ = 0;
  std::atomic<uint64_t> reads_{0}, leases_{0};
  std::atomic<uint32_t> running_{kThreads};
  Verdict verdict_;
};

TEST(LitmusTest, WhatASessionHoldsIsMarkedAndKeptUntilItDropsIt) {
  HoldersLitmus().Run(LitmusOperations(97));
}

}  // namespace
}  // namespace prefixd::ram
