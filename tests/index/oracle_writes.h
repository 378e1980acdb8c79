// Random writing on the index and on the oracle beside it: reserve, publish, end, close.
#pragma once
#include <gtest/gtest.h>

#include "oracle_moves.h"

namespace prefixd::index {

class OracleWrites : public OracleMoves {
 protected:
  using OracleMoves::OracleMoves;

  void DoReserve() {
    if (reservations_.size() >= 6 || oracle_.blocks().size() > kMaxBlocks) return;
    OpenReservation open;
    open.prefix = PickPrefix();
    open.session = PickSession();
    const Selection selection = open.selection = PickSelection();
    open.wanted = oracle_.WantedOf(selection);
    const PrefixSequence sequence(open.prefix);
    open.plan = index_.Reserve(space_, sequence.view(), selection, open.session).value().plan;
    open.id = open.plan.reservation;
    size_t end = 0;
    for (const block::BlockPlan& plan : open.plan.blocks) {
      ASSERT_EQ(plan.first_token, end);
      end += plan.tokens;
      const bool present = oracle_.IsPresent(Cut(open.prefix, end), open.wanted);
      ASSERT_EQ(plan.state == block::BlockState::kPresent, present);
      open.known.push_back(present);
    }
    ASSERT_EQ(end, open.prefix.size());
    for (size_t blocks = open.prefix.size() / kBlockTokens; blocks > 0; --blocks) {
      open.hold = oracle_.Find(Cut(open.prefix, blocks * kBlockTokens));
      open.hold_blocks = blocks;
      if (open.hold != nullptr) break;
    }
    if (open.hold == nullptr) open.hold_blocks = 0;
    if (open.hold != nullptr) ++open.hold->pins;
    reservations_.push_back(std::move(open));
  }

  void DoPublish() {
    OpenReservation* const open = PickReservation();
    if (open == nullptr) return;
    const auto count = static_cast<uint32_t>(open->plan.blocks.size());
    const uint32_t which = open->next < count && !OneIn(8) ? open->next : Pick(count);
    ++open->next;
    const block::BlockPlan& plan = open->plan.blocks[which];
    std::vector<NewPage> pages;
    std::set<PageKey> keys;
    for (uint32_t group = 0; group < 2; ++group) {
      if (OneIn(10) || !open->wanted.contains(group)) continue;
      const uint32_t rung = plan.rungs[group] != block::kNoLimit ? plan.rungs[group] : 0;
      pages.push_back(MakePage(group, rung));
      keys.insert({group, rung});
    }
    if (pages.empty()) return;
    const auto serials = index_.SerialsFor(open->id, which);
    const auto result = index_.Publish(
        open->id, which, pages, serials.ok() ? std::optional<Serials>(*serials) : std::nullopt);
    const Prefix prefix = Cut(open->prefix, plan.first_token + plan.tokens);
    const BlockPtr parent = oracle_.Find(Cut(open->prefix, plan.first_token));
    const bool parent_stored =
        which == 0 || (parent != nullptr && (parent->present() || open->known[which - 1]));
    ASSERT_EQ(result.ok(), parent_stored && !open->cleared);
    ASSERT_EQ(serials.ok(), result.ok());
    if (!result.ok()) {
      ASSERT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
      return;  // the extents stayed ours
    }
    ASSERT_EQ(serials->parent, which == 0 ? 0 : parent->serial);
    const bool duplicate = oracle_.Duplicate(prefix, keys, false);
    ASSERT_EQ(*result, duplicate ? block::StoreResult::kDuplicate : block::StoreResult::kStored);
    BlockPtr block = oracle_.Find(prefix);
    if (duplicate) {
      for (const NewPage& page : pages) oracle_.freed().insert(page.extent.offset);
    } else {
      block = Insert(prefix, serials->own);
      ASSERT_EQ(block->serial, serials->own);
      AddPages(block, pages);
      oracle_.Supersede(block);
    }
    Follow(*open, block, which);
  }

  void AddPages(const BlockPtr& block, const std::vector<NewPage>& pages) {
    for (const NewPage& page : pages) {
      ModelPage& there = block->pages[{page.group, page.rung}];
      if (there.state != PageState::kGone) {
        oracle_.freed().insert(page.extent.offset);
        continue;
      }
      there.state = PageState::kRam;
      there.extent = page.extent;
      there.check = page.check;
      oracle_.by_extent()[page.extent.offset] = {block, {page.group, page.rung}};
    }
  }

  // The reservation's hold follows what it publishes.
  void Follow(OpenReservation& open, const BlockPtr& block, uint32_t which) {
    open.known[which] = true;
    if (block == nullptr) return;
    if (open.plan.blocks[which].tokens == kBlockTokens) {
      if (which < open.hold_blocks) return;
      ++block->pins;
      const BlockPtr before = std::exchange(open.hold, block);
      open.hold_blocks = which + 1;
      Unpin(before);
    } else if (open.tail == nullptr) {
      open.tail = block;
      ++block->pins;
    }
  }
  void Unpin(const BlockPtr& block) {
    if (block == nullptr) return;
    --block->pins;
    oracle_.Settle(block);
  }

  void DoEnd() {
    OpenReservation* const open = PickReservation();
    if (open == nullptr) return;
    const auto size = static_cast<uint32_t>(open->prefix.size());
    const uint32_t tokens = OneIn(3) ? 1 + Pick(size) : size;
    const absl::Status status = index_.AddEnd(open->id, tokens);
    const Prefix prefix = Cut(open->prefix, tokens);
    bool stored = !open->cleared;
    const uint32_t last = (tokens - 1) / kBlockTokens;
    for (uint32_t block = 0; stored && block < last; ++block) {
      const BlockPtr there = oracle_.Find(Cut(prefix, (block + 1) * kBlockTokens));
      stored = there != nullptr && (there->present() || open->known[block]);
    }
    stored = stored && oracle_.SomeExtending(prefix, !open->known[last]);
    ASSERT_EQ(status.ok(), stored) << status;
    if (stored) oracle_.AddEnd(prefix);
  }

  void Close(OpenReservation& open) {
    Unpin(open.hold);
    Unpin(open.tail);
  }
  void DoClose() {
    OpenReservation* const open = PickReservation();
    if (open == nullptr || (open->next < open->plan.blocks.size() && !OneIn(6))) return;
    ASSERT_TRUE(index_.CloseReservation(open->id).ok());
    Close(*open);
    reservations_.erase(reservations_.begin() + (open - reservations_.data()));
  }
};

}  // namespace prefixd::index
