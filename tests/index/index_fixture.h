// An index with one space, and the few moves that every test of it makes.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "index/prefix_index.h"

namespace prefixd::index {

using Tokens = std::vector<block::Token>;

// `count` tokens counted upwards from `first`.
inline Tokens Count(block::Token first, uint32_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
inline Tokens Join(Tokens head, const Tokens& tail) {
  head.insert(head.end(), tail.begin(), tail.end());
  return head;
}
inline Tokens FirstOf(const Tokens& tokens, uint32_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

struct Stored {
  std::vector<block::BlockPlan> plan;
  std::vector<block::StoreResult> results;  // of the blocks that were published
};

class IndexTest : public testing::Test {
 protected:
  static constexpr uint64_t kPageBytes = 1000;
  static constexpr block::SessionId kMe{1}, kOther{2};

  explicit IndexTest(uint32_t block_tokens = 16, std::vector<uint32_t> rungs = {1},
                     PrefixIndex::Options options = {})
      : index_(options) {
    SpaceShape shape{.id = {}, .block_tokens = block_tokens, .rungs = std::move(rungs)};
    shape.id[0] = std::byte{7};
    space_ = index_.AddSpace(shape);
  }
  void TearDown() override { EXPECT_TRUE(index_.Validate().ok()) << index_.Validate(); }

  block::Extent NewExtent() {
    next_offset_ += block::kExtentUnit;
    return {next_offset_, block::kExtentUnit};
  }
  NewPage MakePage(uint32_t group = 0, uint32_t rung = 0) {
    return {.group = group,
            .rung = rung,
            .extent = NewExtent(),
            .check = 1,
            .page_bytes = kPageBytes,
            .payload_bytes = kPageBytes - 100,
            .marks = &marks_[next_offset_]};
  }
  // As they stand in the arena file beside the extent.
  block::PageMarks& MarksOf(const block::Extent& extent) { return marks_[extent.offset]; }
  block::ReservationId Reserve(const block::SequenceView& sequence, block::SessionId session = kMe,
                               const Selection& selection = {}) {
    reserved_ = index_.Reserve(space_, sequence, selection, session).value();
    open_.emplace_back(session, reserved_.plan.reservation);
    return reserved_.plan.reservation;
  }
  // Publishes every wanted page of the blocks from `first` up to `last`, in one rung of each group.
  Stored PublishAll(block::ReservationId id, const block::ReservePlan& plan) {
    Stored stored{.plan = plan.blocks, .results = {}};
    for (uint32_t i = 0; i < plan.blocks.size(); ++i) {
      std::vector<NewPage> pages;
      for (uint32_t group = 0; group < plan.blocks[i].rungs.size(); ++group) {
        const uint32_t rung = plan.blocks[i].rungs[group];
        if (rung != block::kNoLimit) pages.push_back(MakePage(group, rung));
      }
      if (!pages.empty()) stored.results.push_back(index_.Publish(id, i, pages).value());
    }
    return stored;
  }
  // Reserves, publishes what is missing, declares the end.
  Stored Store(const block::SequenceView& sequence, const Selection& selection = {}) {
    const block::ReservationId id = Reserve(sequence, kMe, selection);
    Stored stored = PublishAll(id, reserved_.plan);
    EXPECT_TRUE(index_.AddEnd(id, static_cast<uint32_t>(sequence.tokens.size())).ok());
    EXPECT_TRUE(index_.CloseReservation(id).ok());
    return stored;
  }
  Stored Store(const Tokens& tokens) { return Store(block::SequenceView{tokens, {}}); }

  block::MatchAnswer Match(const Tokens& tokens, const MatchOptions& options = {},
                           block::SessionId session = kMe) const {
    return index_.Match(space_, {tokens, {}}, options, session);
  }
  Acquired Acquire(const Tokens& tokens, const MatchOptions& options = {},
                   block::SessionId session = kMe) {
    return index_.Acquire(space_, {tokens, {}}, options, session);
  }
  // Every lease and open reservation of the session ends.
  void EndSession(block::SessionId session) {
    for (const block::LeaseInfo& lease : index_.ListLeases()) {
      if (lease.session != session) continue;
      EXPECT_TRUE(index_.Release(lease.lease).ok());
    }
    for (const auto& [of, id] : open_) {
      if (of == session) (void)index_.CloseReservation(id);
    }
  }
  block::SpaceSummary Summary() const {
    block::SpaceSummary summary;
    summary.handle = space_;
    index_.Summarize(&summary);
    return summary;
  }
  // Everything that is dirty goes to SSD under sequences counted upwards.
  std::vector<SpillBlock> SpillAll() {
    std::vector<SpillBlock> all;
    while (true) {
      std::vector<SpillBlock> blocks = index_.PickSpill(~uint64_t{0});
      if (blocks.empty()) return all;
      std::vector<SpilledPage> pages;
      for (SpillBlock& block : blocks) {
        for (const PageInfo& page : block.pages) pages.push_back({page.ref, ++next_sequence_});
        block.record_sequence = ++next_sequence_;
      }
      index_.FinishSpill(blocks, pages);
      all.insert(all.end(), blocks.begin(), blocks.end());
    }
  }
  void EvictAll() {
    while (index_.EvictOne(true).has_value()) {
    }
  }

  PrefixIndex index_;
  block::SpaceHandle space_;
  Reserved reserved_;
  std::vector<std::pair<block::SessionId, block::ReservationId>> open_;
  std::map<uint64_t, block::PageMarks> marks_;  // by extent offset
  uint64_t next_offset_ = 0;
  uint64_t next_sequence_ = 0;
};

// With a clock that the test moves.
class ClockedIndexTest : public IndexTest {
 protected:
  ClockedIndexTest() : IndexTest(16, {1}, {.clock = &Clock()}) {}
  // Made before the index, which is a member of the base class.
  static base::FakeClock& Clock() {
    static base::FakeClock clock;
    return clock;
  }
};

}  // namespace prefixd::index
