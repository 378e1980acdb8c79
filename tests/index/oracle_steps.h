// Random moves that give up, spill and restore, on the index and on the oracle beside it; reading
// and writing stand in oracle_writes.h.
#pragma once
#include "oracle_writes.h"

namespace prefixd::index {

struct FoundPage {
  Prefix prefix;
  PageKey key;
  AdoptedPage page;
};

class OracleSteps : public OracleWrites {
 protected:
  using OracleWrites::OracleWrites;

  // --- giving up ---

  // The index chose; the oracle says whether it might.
  void LearnEviction(uint64_t bytes, bool leaf_first, bool may_drop) {
    std::set<BlockPtr> touched;
    uint64_t freed_bytes = 0;
    for (const block::Extent& extent : index_.TakeFreed()) {
      const auto it = oracle_.by_extent().find(extent.offset);
      ASSERT_NE(it, oracle_.by_extent().end());
      const auto [block, key] = it->second;
      ModelPage& page = block->pages.at(key);
      ASSERT_EQ(page.holders, 0);
      const bool unverified = page.state == PageState::kUnverified;
      ASSERT_FALSE(unverified && !leaf_first);
      const bool copy = page.state == PageState::kRamAndSsd || (unverified && page.sequence != 0);
      ASSERT_TRUE(copy || (may_drop && (unverified || page.state == PageState::kRam)));
      ASSERT_FALSE(leaf_first && oracle_.HasRamBelow(*block));
      freed_bytes += extent.bytes;
      oracle_.by_extent().erase(it);
      Poison(extent.offset);
      page.extent = {};
      page.state = copy ? PageState::kSsd : PageState::kGone;
      touched.insert(block);
    }
    ASSERT_EQ(freed_bytes, bytes);
    ASSERT_FALSE(leaf_first && touched.size() > 1);
    for (const BlockPtr& block : touched) {
      if (block->in_tree) oracle_.Settle(block);
    }
  }

  void DoEvict() {
    CheckFreed();
    const bool may_drop = OneIn(2);
    if (OneIn(50)) {
      const uint64_t begin = next_offset_ - std::min(next_offset_, uint64_t{Pick(1 << 20)});
      const Evicted evicted = index_.EvictRange(begin, begin + (1 << 19), may_drop);
      LearnEviction(evicted.bytes, false, may_drop);
      return;
    }
    const auto evicted = index_.EvictOne(may_drop);
    LearnEviction(evicted.has_value() ? evicted->bytes : 0, true, may_drop);
  }

  void DoClear() {
    index_.Clear(space_);
    for (OpenReservation& open : reservations_) {
      open.cleared = true;
      Close(open);
      open.hold = open.tail = nullptr;
    }
    while (!oracle_.blocks().empty()) oracle_.Remove(oracle_.blocks().rbegin()->second);
  }

  void DoTrim() {
    index_.TrimMemory(0);
    for (bool gained = true; gained;) {
      gained = false;
      const auto blocks = oracle_.blocks();
      for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
        const BlockPtr& block = it->second;
        const bool in_ram =
            std::any_of(block->pages.begin(), block->pages.end(),
                        [](const auto& page) { return page.second.extent.bytes > 0; });
        if (!block->in_tree || in_ram || block->pins > 0 || oracle_.HasChildren(*block)) continue;
        oracle_.Remove(block);
        gained = true;
      }
    }
  }

  void DoEndSession() {
    const block::SessionId session = PickSession();
    for (const OpenLease& lease : leases_) {
      if (lease.session != session) continue;
      ASSERT_TRUE(index_.Release(lease.id).ok());
    }
    for (const OpenReservation& open : reservations_) {
      if (open.session != session) continue;
      ASSERT_TRUE(index_.CloseReservation(open.id).ok());
    }
    for (OpenLease& lease : leases_) {
      if (lease.session == session) GiveUp(lease, 0);
    }
    for (OpenReservation& open : reservations_) {
      if (open.session == session) Close(open);
    }
    std::erase_if(leases_, [&](const OpenLease& lease) { return lease.session == session; });
    std::erase_if(reservations_,
                  [&](const OpenReservation& open) { return open.session == session; });
  }

  // --- SSD ---

  void DoSpill() {
    if (!spill_.empty()) return EndSpill();
    spill_ = index_.PickSpill(Pick(20) * kPageBytes);
    bool only_pages = true;
    for (const SpillBlock& picked : spill_) {
      const BlockPtr block = OwnerOf(picked);
      spill_blocks_.push_back(block);
      if (block == nullptr) {
        // A hole's record: nothing in it says which of several equal blocks it is.
        ASSERT_TRUE(picked.pages.empty() && picked.ssd_pages.empty());
        only_pages = false;
        continue;
      }
      ASSERT_TRUE(block->in_tree);
      ASSERT_EQ(PrefixSequence(block->prefix).tokens.size(),
                picked.first_token + picked.tokens.size());
      for (const PageInfo& page : picked.pages) {
        ModelPage& there = block->pages.at({page.ref.group, page.ref.rung});
        ASSERT_EQ(there.state, PageState::kRam);
        there.state = PageState::kSpilling;
      }
      ++block->pins;
      CheckParents(block->prefix);
    }
    if (OneIn(2) || !only_pages) EndSpill();
  }

  BlockPtr OwnerOf(const SpillBlock& picked) {
    if (!picked.pages.empty()) {
      return oracle_.by_extent().at(picked.pages[0].extent.offset).first;
    }
    if (picked.ssd_pages.empty()) return nullptr;
    for (const auto& [prefix, block] : oracle_.blocks()) {
      for (const auto& [key, page] : block->pages) {
        if (page.sequence == picked.ssd_pages[0].ssd_sequence) return block;
      }
    }
    return nullptr;
  }

  void CheckParents(const Prefix& prefix) {
    for (size_t end = kBlockTokens; end <= oracle_.BaseOf(prefix); end += kBlockTokens) {
      const BlockPtr parent = oracle_.Find(Cut(prefix, end));
      for (const auto& [key, page] : parent->pages) {
        ASSERT_NE(page.state, PageState::kRam) << "a child is spilled before its parent";
      }
    }
  }

  void EndSpill() {
    const bool abort = OneIn(4);
    std::vector<SpilledPage> pages;
    for (size_t i = 0; i < spill_.size(); ++i) {
      if (spill_blocks_[i] == nullptr) continue;
      ArchivedRecord archived{.prefix = spill_blocks_[i]->prefix, .record = {}};
      archived.record.hash = spill_[i].hash;
      archived.record.parent = spill_[i].parent;
      archived.record.serials = spill_[i].serials;
      archived.record.other_serials = spill_[i].other_serials;
      archived.record.tokens = spill_[i].tokens;
      archived.record.content = spill_[i].content;
      archived.record.ends = spill_[i].ends;
      const auto add = [&](const PageInfo& page, uint64_t sequence) {
        archived.record.pages.push_back({.group = page.ref.group,
                                         .rung = page.ref.rung,
                                         .tokens = page.name.tokens,
                                         .page_bytes = page.page_bytes,
                                         .payload_bytes = page.payload_bytes,
                                         .check = page.check,
                                         .ssd_sequence = sequence});
      };
      for (const PageInfo& page : spill_[i].ssd_pages) add(page, page.ssd_sequence);
      for (const PageInfo& page : spill_[i].pages) {
        if (OneIn(20)) continue;  // this one could not be written
        pages.push_back({page.ref, ++next_sequence_});
        add(page, next_sequence_);
      }
      spill_[i].record_sequence = archived.record.record_sequence = ++next_sequence_;
      const bool kept = !abort && !archived.record.pages.empty();
      if (kept) archive_.push_back(std::move(archived));
    }
    if (archive_.size() > 200) archive_.erase(archive_.begin(), archive_.begin() + 100);
    abort ? index_.AbortSpill(spill_) : index_.FinishSpill(spill_, pages);
    for (const BlockPtr& block : spill_blocks_) {
      if (block != nullptr) EndModelSpill(block, abort, pages);
    }
    spill_.clear();
    spill_blocks_.clear();
  }

  void EndModelSpill(const BlockPtr& block, bool abort, const std::vector<SpilledPage>& pages) {
    for (auto& [key, page] : block->pages) {
      if (page.state != PageState::kSpilling) continue;
      page.state = PageState::kRam;
      if (abort || !block->in_tree) continue;
      for (const SpillBlock& picked : spill_) {
        for (const PageInfo& info : picked.pages) {
          if (info.extent != page.extent) continue;
          for (const SpilledPage& spilled : pages) {
            if (spilled.ref != info.ref) continue;
            page.state = PageState::kRamAndSsd;
            page.sequence = spilled.ssd_sequence;
          }
        }
      }
    }
    --block->pins;
    oracle_.Settle(block);
  }

  void DoDropSsd() {
    if (archive_.empty()) return;
    const uint64_t first = next_sequence_ - std::min(next_sequence_, uint64_t{Pick(400)});
    const uint64_t last = first + Pick(60);
    const auto dropped = [&](uint64_t sequence) { return sequence >= first && sequence <= last; };
    index_.DropSsdRange(first, last);
    for (ArchivedRecord& archived : archive_) {
      std::erase_if(archived.record.pages,
                    [&](const RestoredPage& page) { return dropped(page.ssd_sequence); });
    }
    std::erase_if(archive_, [&](const ArchivedRecord& archived) {
      return dropped(archived.record.record_sequence) || archived.record.pages.empty();
    });
    std::set<BlockPtr> all;
    for (const auto& [prefix, block] : oracle_.blocks()) all.insert(block);
    for (const OpenLease& lease : leases_) {
      for (const HeldByModel& page : lease.pages) all.insert(page.block);
    }
    if (promotion_.block != nullptr) all.insert(promotion_.block);
    for (const HeldByModel& page : adoption_) all.insert(page.block);
    for (const BlockPtr& block : all) {
      for (auto& [key, page] : block->pages) {
        if (page.sequence == 0 || !dropped(page.sequence)) continue;
        page.sequence = 0;
        if (page.state == PageState::kSsd) oracle_.Gone(page);
        if (page.state == PageState::kRamAndSsd) page.state = PageState::kRam;
      }
    }
    for (const BlockPtr& block : all) oracle_.Settle(block);
  }

  // Whether a record finds the block that it continues: the one that it was made under, or that is
  // known to be the same.
  bool HasParent(const Prefix& prefix, uint64_t serial) {
    const size_t base = oracle_.BaseOf(prefix);
    if (base == 0) return true;
    const BlockPtr parent = oracle_.Find(Cut(prefix, base));
    return parent != nullptr && parent->Has(serial);
  }

  void DoRestore() {
    if (archive_.empty() || oracle_.blocks().size() > kMaxBlocks) return;
    const ArchivedRecord& archived = archive_[Pick(static_cast<uint32_t>(archive_.size()))];
    const Prefix& prefix = archived.prefix;
    const size_t base = oracle_.BaseOf(prefix);
    const bool parent = HasParent(prefix, archived.record.serials.parent);
    const absl::Status status = index_.Restore(space_, archived.record);
    ASSERT_EQ(status.ok(), parent) << status;
    if (!parent) return;
    BlockPtr block = oracle_.Find(prefix);
    std::set<PageKey> keys;
    for (const RestoredPage& page : archived.record.pages) keys.insert({page.group, page.rung});
    const bool full = prefix.size() % kBlockTokens == 0;
    if (block != nullptr || full || (!keys.empty() && !oracle_.Duplicate(prefix, keys, true))) {
      block = Insert(prefix, archived.record.serials.own);
      for (const uint64_t serial : archived.record.other_serials) Insert(prefix, serial);
      for (const RestoredPage& page : archived.record.pages) {
        ModelPage& there = block->pages[{page.group, page.rung}];
        if (there.state == PageState::kUnverified && there.check == page.check) {
          there.sequence = std::max(there.sequence, page.ssd_sequence);
        }
        const bool replaces =
            there.state == PageState::kGone ||
            (there.state == PageState::kSsd && there.sequence < page.ssd_sequence);
        if (!replaces || there.holders > 0) continue;
        there.state = PageState::kSsd;
        there.sequence = page.ssd_sequence;
        there.check = page.check;
      }
      oracle_.Supersede(block);
    }
    for (const uint32_t end : archived.record.ends) {
      const Prefix ended = Cut(prefix, base + end);
      if (oracle_.SomeExtending(ended, false)) oracle_.AddEnd(ended);
    }
  }

  // --- pages of an earlier daemon ---

  // Somebody kills the daemon; what a page's record says is kept for later.
  void DoDescribe() {
    const OpenLease* const lease = PickLease();
    if (lease == nullptr || lease->pages.empty()) return;
    const HeldByModel& page = lease->pages[Pick(static_cast<uint32_t>(lease->pages.size()))];
    const auto block = index_.Describe(page.ref);
    const bool there =
        page.block->in_tree && page.block->pages.at(page.key).state != PageState::kGone;
    ASSERT_EQ(block.has_value(), there);
    if (!there) return;
    ASSERT_EQ(block->first_token, oracle_.BaseOf(page.block->prefix));
    AdoptedPage adopted{.name = block->name,
                        .serials = block->serials,
                        .first_token = block->first_token,
                        .tokens = block->tokens,
                        .content = block->content,
                        .ends = block->ends,
                        .last_use = 0,
                        .page = {}};
    found_.push_back({page.block->prefix, page.key, adopted});
    if (found_.size() > 200) found_.erase(found_.begin(), found_.begin() + 100);
  }

  void DoAdopt() {
    if (found_.empty() || oracle_.blocks().size() > kMaxBlocks) return;
    auto& [prefix, key, adopted] = found_[Pick(static_cast<uint32_t>(found_.size()))];
    adopted.page = MakePage(key.first, key.second);
    adopted.page.check = OneIn(4) ? 2 : 1;
    adopted.last_use = Pick(1000);
    const uint32_t slot = OneIn(2) ? 42 : 21;
    const bool read = adopted.page.marks != nullptr && OneIn(3);
    if (read) adopted.page.marks->SetHolders(uint64_t{1} << slot);
    const auto ref = index_.Adopt(space_, adopted);
    const size_t base = oracle_.BaseOf(prefix);
    if (!HasParent(prefix, adopted.serials.parent)) {
      ASSERT_TRUE(absl::IsNotFound(ref.status())) << ref.status();
      return;
    }
    BlockPtr block = oracle_.Find(prefix);
    const PageState state = block == nullptr || !block->pages.contains(key)
                                ? PageState::kGone
                                : block->pages.at(key).state;
    const bool needed = (state == PageState::kGone || state == PageState::kSsd) &&
                        !oracle_.Duplicate(prefix, {key}, true);
    ASSERT_EQ(ref.ok(), needed) << ref.status();
    if (needed || block != nullptr) block = Insert(prefix, adopted.serials.own);
    for (const uint32_t end : adopted.ends) {
      const Prefix ended = Cut(prefix, base + end);
      if (oracle_.SomeExtending(ended, false)) oracle_.AddEnd(ended);
    }
    if (!needed) return;
    ModelPage& page = block->pages[key];
    if (page.check != adopted.page.check) page.sequence = 0;
    page.state = PageState::kUnverified;
    page.check = adopted.page.check;
    page.extent = adopted.page.extent;
    oracle_.by_extent()[page.extent.offset] = {block, key};
    if (read) {
      oracle_.Take(block, key, slot);
      adoption_.push_back({block, key, *ref});
    }
    oracle_.Supersede(block);
  }

  void DoAdoptLease() {
    if (adoption_.empty()) return;
    OpenLease lease = NewLease();
    std::vector<PageRef> refs;
    for (const HeldByModel& page : adoption_) {
      const bool in_ram = static_cast<bool>(page.block->pages.at(page.key).extent);
      if (OneIn(2)) continue;
      refs.push_back(page.ref);
      if (in_ram) Take(lease, {page});
    }
    lease.id = index_.AdoptLease(lease.session, lease.slot, refs);
    ASSERT_EQ(static_cast<bool>(lease.id), !lease.pages.empty());
    if (lease.id) leases_.push_back(std::move(lease));
  }

  void DoEndAdoption() {
    index_.PruneHoles();
    for (const auto& [prefix, block] : oracle_.blocks()) block->other_serials.clear();
    for (const HeldByModel& page : adoption_) oracle_.Drop(page.block, page.key);
    for (const HeldByModel& page : adoption_) oracle_.Settle(page.block);
    adoption_.clear();
    const auto blocks = oracle_.blocks();
    for (const auto& [prefix, block] : blocks) {
      if (block->in_tree) oracle_.Settle(block);
    }
  }

  // --- moves ---

  void DoMove() {
    if (moves_.empty()) {
      const uint64_t begin = next_offset_ - std::min(next_offset_, uint64_t{Pick(1 << 20)});
      const uint64_t end = begin + (1 << 19);
      moves_ = index_.PickMovable(begin, end);
      size_t movable = 0;
      for (const auto& [offset, owner] : oracle_.by_extent()) {
        const ModelPage& page = owner.first->pages.at(owner.second);
        if (offset >= begin && offset < end && Movable(page)) ++movable;
      }
      ASSERT_EQ(moves_.size(), movable);
      if (OneIn(2)) return;
    }
    for (const PageInfo& moved : moves_) {
      const NewPage place = MakePage(0, 0);
      const auto it = oracle_.by_extent().find(moved.extent.offset);
      const bool expected =
          it != oracle_.by_extent().end() && Movable(it->second.first->pages.at(it->second.second));
      ASSERT_EQ(index_.FinishMove(moved.ref, moved.extent, place.extent, place.marks), expected);
      if (!expected) continue;
      const auto [block, key] = it->second;
      oracle_.freed().insert(moved.extent.offset);
      oracle_.by_extent().erase(it);
      oracle_.by_extent()[place.extent.offset] = {block, key};
      block->pages.at(key).extent = place.extent;
    }
    moves_.clear();
  }
  static bool Movable(const ModelPage& page) {
    return page.holders == 0 &&
           (page.state == PageState::kRam || page.state == PageState::kRamAndSsd);
  }

  void CheckSums() {
    const absl::Status status = index_.Validate();
    ASSERT_TRUE(status.ok()) << status;
    block::SpaceSummary summary;
    summary.handle = space_;
    index_.Summarize(&summary);
    uint64_t blocks = 0, tokens = 0, ram = 0, ssd = 0, dirty = 0;
    for (const auto& [prefix, block] : oracle_.blocks()) {
      if (!block->present()) continue;
      ++blocks;
      tokens += prefix.size() - oracle_.BaseOf(prefix);
      for (const auto& [key, page] : block->pages) {
        if (page.extent) ram += page.extent.bytes;
        if (page.sequence != 0 && page.state != PageState::kGone) ssd += kPageBytes;
        if (page.sequence == 0) dirty += page.extent.bytes;
        if (!page.extent) continue;
        const auto marks = marks_.find(page.extent.offset);  // some have none
        if (marks == marks_.end()) continue;
        ASSERT_EQ(marks->second.ReadHolders(), page.slots);
      }
    }
    for (const uint64_t offset : poisoned_) ExpectPoison(marks_.at(offset));
    ASSERT_EQ(summary.blocks, blocks);
    ASSERT_EQ(summary.holes, oracle_.blocks().size() - blocks);
    ASSERT_EQ(summary.stored_tokens, tokens);
    ASSERT_EQ(summary.ends, oracle_.ends().size());
    ASSERT_EQ(summary.ram_extent_bytes, ram);
    ASSERT_EQ(summary.dirty_bytes, dirty);
    ASSERT_EQ(summary.ssd_page_bytes, ssd);
    ASSERT_EQ(index_.Counts().leases, leases_.size());
    ASSERT_EQ(index_.Counts().reservations, reservations_.size());
    ASSERT_EQ(index_.Counts().dirty_bytes, dirty);
  }

  void Step() {
    const uint32_t dice = Pick(1000);
    if (dice < 250) return DoMatch();
    if (dice < 360) return DoAcquire();
    if (dice < 375) return DoListLease();
    if (dice < 390) return DoLeasePublished();
    if (dice < 480) return DoRelease();
    if (dice < 540) return DoReserve();
    if (dice < 740) return DoPublish();
    if (dice < 780) return DoEnd();
    if (dice < 830) return DoClose();
    if (dice < 890) return DoEvict();
    if (dice < 925) return DoSpill();
    if (dice < 950) return DoPromote();
    if (dice < 965) return DoRestore();
    if (dice < 969) return DoDropSsd();
    if (dice < 971) return DoEndSession();
    if (dice < 976) return DoDescribe();
    if (dice < 985) return DoAdopt();
    if (dice < 988) return DoAdoptLease();
    if (dice < 990) return DoEndAdoption();
    if (dice < 997) return DoMove();
    if (OneIn(40)) return DoClear();
    if (OneIn(10)) return DoTrim();
  }

  std::vector<FoundPage> found_;
  std::vector<HeldByModel> adoption_;
  std::vector<PageInfo> moves_;
};

}  // namespace prefixd::index
