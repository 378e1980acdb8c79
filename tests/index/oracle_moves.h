// What random moves on the index and on the oracle beside it know, and the reading ones; after each
// the two agree. oracle_writes.h has the writing ones.
#pragma once
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "oracle.h"

namespace prefixd::index {

struct Variant {
  const char* name;
  uint32_t hash_bits;
  uint32_t max_ghosts;
  uint32_t seed;
};

// Without its own printer, gtest would print the bytes of the name's pointer into the test's name.
inline void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

struct OpenReservation {
  block::ReservationId id;
  block::SessionId session;
  Prefix prefix;
  Wanted wanted;
  Selection selection;
  block::ReservePlan plan;
  std::vector<bool> known;  // present in the plan or published since
  BlockPtr hold, tail;
  size_t hold_blocks = 0;
  bool cleared = false;
  uint32_t next = 0;
};
struct HeldByModel {
  BlockPtr block;
  PageKey key;
  PageRef ref;
  bool operator==(const HeldByModel&) const = default;
};
struct OpenLease {
  block::LeaseId id;
  block::SessionId session;
  uint32_t slot = block::kNoSlot;
  MatchOptions options;  // of the acquire
  Prefix prefix;         // what it covers; empty: pages of an earlier daemon
  size_t from = 0;
  std::vector<HeldByModel> pages;
};
struct OpenPromotion {
  PageRef ref;
  BlockPtr block;
  PageKey key;
};
struct ArchivedRecord {
  Prefix prefix;
  RestoredBlock record;
};

class OracleMoves : public testing::TestWithParam<Variant> {
 protected:
  static constexpr uint32_t kBlockTokens = 16;
  static constexpr uint64_t kPageBytes = 1000;
  static constexpr size_t kMaxBlocks = 120;

  explicit OracleMoves(uint32_t max_events = 65536)
      : random_(GetParam().seed),
        index_({.max_ghosts = GetParam().max_ghosts,
                .max_events = max_events,
                .hasher = block::BlockHasher({}, GetParam().hash_bits)}),
        oracle_(kBlockTokens, {1, 2}) {
    space_ = index_.AddSpace({.id = {}, .block_tokens = kBlockTokens, .rungs = {1, 2}});
  }

  // In the tree by this record or call: under its serial, unless it had one.
  BlockPtr Insert(const Prefix& prefix, uint64_t serial) {
    BlockPtr block = oracle_.Insert(prefix);
    if (serial == 0) return block;
    if (block->serial == 0) block->serial = serial;
    if (block->serial != serial) block->other_serials.insert(serial);
    return block;
  }

  uint32_t Pick(uint32_t count) { return static_cast<uint32_t>(random_() % count); }
  bool OneIn(uint32_t count) { return Pick(count) == 0; }
  block::SessionId PickSession() { return {1 + Pick(3)}; }
  Selection PickSelection() {
    Selection selection;
    if (OneIn(4)) selection.groups = {Pick(2)};
    if (OneIn(3)) selection.rungs = {1, 1 + Pick(3)};
    return selection;
  }

  // Something stored, cut anywhere, and often a new tail of a few different tokens.
  Prefix PickPrefix() {
    Prefix prefix;
    const auto& blocks = oracle_.blocks();
    if (!blocks.empty() && !OneIn(6)) {
      auto it = blocks.begin();
      std::advance(it, Pick(static_cast<uint32_t>(blocks.size())));
      prefix = it->first;
      if (OneIn(2)) prefix.resize(Pick(static_cast<uint32_t>(prefix.size())) + 1);
    }
    const bool grows = prefix.empty() || !OneIn(3);
    const uint32_t more = grows ? 1 + Pick(OneIn(4) ? 50 : 8) : 0;
    for (uint32_t i = 0; i < more && prefix.size() < 100; ++i) {
      if (OneIn(40)) {
        const uint32_t item = 1 + Pick(2), from = OneIn(4) ? Pick(3) : 0, length = 1 + Pick(20);
        for (uint32_t k = 0; k < length; ++k) prefix.push_back({9, item, from + k});
      } else {
        prefix.push_back({OneIn(8) ? 1u : 0u, 0, 0});
      }
    }
    return prefix;
  }

  // What stands beside a free extent is somebody else's; the last thousand are looked at again.
  static constexpr uint64_t kPoison = 0x5a5a5a5a5a5a5a5a;
  void Poison(uint64_t offset) {
    const auto found = marks_.find(offset);  // some have none
    if (found == marks_.end()) return;
    block::PageMarks& marks = found->second;
    marks.holders = marks.ends[0] = marks.ends[1] = kPoison;
    marks.last_use = 7;
    poisoned_.push_back(offset);
    if (poisoned_.size() <= 1000) return;
    ExpectPoison(marks_.at(poisoned_.front()));
    marks_.erase(poisoned_.front());
    poisoned_.pop_front();
  }
  static void ExpectPoison(const block::PageMarks& marks) {
    EXPECT_TRUE(marks.holders == kPoison && marks.ends[0] == kPoison && marks.ends[1] == kPoison &&
                marks.last_use == 7)
        << "marks were written after their extent was given back";
  }

  NewPage MakePage(uint32_t group, uint32_t rung) {
    next_offset_ += block::kExtentUnit;
    return {.group = group,
            .rung = rung,
            .extent = {next_offset_, block::kExtentUnit},
            .check = 1,
            .page_bytes = kPageBytes,
            .payload_bytes = kPageBytes,
            .marks = OneIn(8) ? nullptr : &marks_[next_offset_]};
  }

  void CheckFreed() {
    for (const block::Extent& extent : index_.TakeFreed()) {
      const auto it = oracle_.freed().find(extent.offset);
      ASSERT_NE(it, oracle_.freed().end()) << "extent freed twice or while it is needed";
      oracle_.freed().erase(it);
      Poison(extent.offset);
    }
    ASSERT_TRUE(oracle_.freed().empty()) << "extents that nobody needs were not given back";
  }

  // --- reading ---

  uint32_t Expected(const Prefix& request, const Oracle::Answer& plain,
                    const MatchOptions& options) const {
    size_t cut = std::min(plain.restorable, options.max_tokens);
    if (options.causal_content) return static_cast<uint32_t>(cut);
    while (cut > 0 && cut < request.size() && request[cut].item != 0 &&
           request[cut - 1].item == request[cut].item &&
           request[cut - 1].position + 1 == request[cut].position) {
      --cut;
    }
    return static_cast<uint32_t>(cut);
  }

  void CheckAnswer(const Prefix& request, const MatchOptions& options,
                   const block::MatchAnswer& answer) {
    const Oracle::Answer plain = oracle_.Match(request, oracle_.WantedOf(options.selection));
    ASSERT_EQ(answer.matched_tokens, plain.matched);
    ASSERT_EQ(answer.restorable_tokens, Expected(request, plain, options));
    ASSERT_EQ(answer.kind, plain.kind);
    if (GetParam().max_ghosts == 0) {
      ASSERT_EQ(answer.ended_by, plain.ended_by);
      ASSERT_EQ(answer.diverged_sequences, plain.diverged);
    }
    uint32_t lost = 0;
    for (const block::Shortening& shortening : answer.shortened_by) lost += shortening.tokens_lost;
    ASSERT_EQ(answer.matched_tokens - answer.restorable_tokens, lost);
  }

  MatchOptions PickOptions(const Prefix& request) {
    MatchOptions options{.selection = PickSelection(), .causal_content = OneIn(2)};
    if (OneIn(4)) options.max_tokens = Pick(static_cast<uint32_t>(request.size()) + 1);
    return options;
  }

  void DoMatch() {
    const Prefix request = PickPrefix();
    const PrefixSequence sequence(request);
    const MatchOptions options = PickOptions(request);
    CheckAnswer(request, options, index_.Match(space_, sequence.view(), options, PickSession()));
  }

  BlockPtr OwnerOf(const PageInfo& page) {
    if (page.extent) {
      const auto it = oracle_.by_extent().find(page.extent.offset);
      return it == oracle_.by_extent().end() ? nullptr : it->second.first;
    }
    // A block that left the tree while it was held may have come back from its record beside it:
    // the two name one copy on SSD. Which of them a lease has, only its refs say.
    for (const OpenLease& lease : leases_) {
      for (const HeldByModel& held : lease.pages) {
        if (held.ref == page.ref) return held.block;
      }
    }
    for (const auto& [prefix, block] : oracle_.blocks()) {
      for (const auto& [key, there] : block->pages) {
        if (there.sequence == page.ssd_sequence && there.state == page.state) return block;
      }
    }
    return nullptr;
  }

  // Pages that the index says a lease of [.., end of prefix) has: right bytes, without gaps from
  // `first` on, in the state that they have in the oracle.
  void CheckPages(const Acquired& acquired, const Prefix& prefix, uint32_t first,
                  const Wanted& wanted, std::vector<HeldByModel>& held) {
    std::map<uint32_t, uint32_t> reached;
    for (const PageInfo& page : acquired.pages) {
      const BlockPtr owner = OwnerOf(page);
      ASSERT_NE(owner, nullptr);
      const uint32_t end = page.first_token + page.tokens;
      const auto [at, added] = reached.emplace(page.ref.group, first);
      ASSERT_EQ(page.first_token, at->second);
      ASSERT_LE(end, prefix.size());
      // No wrong token: what the page was written for is what was asked for.
      ASSERT_GE(Common(owner->prefix, prefix), end);
      ASSERT_EQ(oracle_.BaseOf(owner->prefix), page.first_token);
      ASSERT_EQ(page.name.tokens, owner->prefix.size() - page.first_token);
      at->second = end;
      const PageKey key{page.ref.group, page.ref.rung};
      ASSERT_EQ(owner->pages.at(key).state, page.state);
      held.push_back({owner, key, page.ref});
    }
    for (const auto& [group, rungs] : wanted) {
      ASSERT_EQ(std::max(reached[group], first), std::max<size_t>(prefix.size(), first));
    }
  }
  void Take(OpenLease& lease, const std::vector<HeldByModel>& pages) {
    for (const HeldByModel& page : pages) {
      if (std::ranges::find(lease.pages, page) != lease.pages.end()) continue;  // adopted twice
      oracle_.Take(page.block, page.key, lease.slot);
      lease.pages.push_back(page);
    }
  }
  OpenLease NewLease() {
    OpenLease lease;
    lease.session = PickSession();
    // One of them maps nothing.
    if (lease.session.value != 3) lease.slot = static_cast<uint32_t>(lease.session.value * 21);
    return lease;
  }
  void Begin(OpenLease lease, const Acquired& acquired, const Prefix& request,
             const Wanted& wanted) {
    ASSERT_EQ(static_cast<bool>(acquired.lease), acquired.answer.restorable_tokens > lease.from);
    if (!acquired.lease) return;
    lease.id = acquired.lease;
    lease.prefix = Cut(request, acquired.answer.restorable_tokens);
    std::vector<HeldByModel> held;
    CheckPages(acquired, lease.prefix, static_cast<uint32_t>(lease.from), wanted, held);
    if (HasFatalFailure()) return;
    Take(lease, held);
    leases_.push_back(std::move(lease));
  }

  void DoAcquire() {
    const Prefix request = PickPrefix();
    const PrefixSequence sequence(request);
    OpenLease lease = NewLease();
    lease.options = PickOptions(request);
    lease.options.slot = lease.slot;
    const Acquired acquired = index_.Acquire(space_, sequence.view(), lease.options, lease.session);
    CheckAnswer(request, lease.options, acquired.answer);
    if (HasFatalFailure()) return;
    const Wanted wanted = oracle_.WantedOf(lease.options.selection);
    Begin(std::move(lease), acquired, request, wanted);
  }

  void GiveUp(OpenLease& lease, uint32_t tokens) {
    std::vector<BlockPtr> touched;
    std::erase_if(lease.pages, [&](const HeldByModel& held) {
      if (oracle_.BaseOf(held.block->prefix) < tokens) return false;
      oracle_.Drop(held.block, held.key);
      touched.push_back(held.block);
      return true;
    });
    for (const BlockPtr& block : touched) oracle_.Settle(block);
  }

  OpenLease* PickLease() {
    return leases_.empty() ? nullptr : &leases_[Pick(static_cast<uint32_t>(leases_.size()))];
  }

  // What a lease holds is listed group by group, each page in the state that it has in the oracle.
  void DoListLease() {
    const OpenLease* const lease = PickLease();
    if (lease == nullptr) return;
    const auto listed = index_.LeasedPages(lease->id, {}, block::kNoLimit);
    ASSERT_TRUE(listed.ok()) << listed.status();
    ASSERT_EQ(listed->size(), lease->pages.size());
    const bool sorted = std::ranges::is_sorted(*listed, {}, [](const PageInfo& page) {
      return std::pair(page.ref.group, page.first_token);
    });
    ASSERT_TRUE(sorted || lease->prefix.empty());  // an earlier daemon's: in any order
    for (const PageInfo& page : *listed) {
      const auto held = std::ranges::find(lease->pages, page.ref, &HeldByModel::ref);
      ASSERT_NE(held, lease->pages.end());
      ASSERT_EQ(held->block->pages.at(held->key).state, page.state);
    }
  }

  // How far a lease for the writer should go.
  size_t PublishedUpTo(const OpenReservation& open, size_t from, size_t tokens) const {
    for (size_t end = from; end < tokens;) {
      const size_t next = std::min(tokens, end + kBlockTokens);
      if (!oracle_.InRamUpTo(Cut(open.prefix, next), end, open.wanted)) return end;
      end = next;
    }
    return tokens;
  }

  void DoLeasePublished() {
    const OpenReservation* const open = PickReservation();
    if (open == nullptr || open->cleared || leases_.size() > 200) return;
    const auto size = static_cast<uint32_t>(open->prefix.size());
    const uint32_t tokens = OneIn(3) ? 1 + Pick(size) : size;
    OpenLease lease = NewLease();
    lease.session = open->session;
    const uint32_t from = OneIn(2) ? 0 : Pick(tokens + 1);
    lease.from = (from + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
    const Acquired acquired = index_.LeasePublished(open->id, from, tokens, lease.slot);
    const bool parent =
        lease.from == 0 || oracle_.Find(Cut(open->prefix, std::min<size_t>(lease.from, size)));
    const size_t reach =
        parent && lease.from < tokens ? PublishedUpTo(*open, lease.from, tokens) : lease.from;
    ASSERT_EQ(acquired.answer.restorable_tokens, reach > lease.from ? reach : 0);
    lease.options.selection = open->selection;
    Begin(std::move(lease), acquired, open->prefix, open->wanted);
  }

  void DoRelease() {
    if (leases_.empty()) return;
    const size_t which = Pick(static_cast<uint32_t>(leases_.size()));
    OpenLease& lease = leases_[which];
    if (OneIn(5)) {
      const uint32_t tokens = Pick(60);
      ASSERT_TRUE(index_.ShrinkLease(lease.id, tokens).ok());
      GiveUp(lease, tokens);
      if (tokens < lease.prefix.size()) lease.prefix.resize(tokens);
      return;
    }
    ASSERT_TRUE(index_.Release(leases_[which].id).ok());
    ASSERT_FALSE(index_.Release(leases_[which].id).ok());
    GiveUp(leases_[which], 0);
    leases_.erase(leases_.begin() + static_cast<ptrdiff_t>(which));
  }

  void DoPromote() {
    if (promotion_.block != nullptr) return FinishPromotion();
    HeldByModel picked;
    if (OneIn(3)) {
      const std::vector<PageInfo> unverified = index_.Unverified(1 + Pick(3));
      if (unverified.empty()) return;
      const PageInfo& page = unverified.back();
      ASSERT_EQ(page.state, PageState::kUnverified);
      picked = {OwnerOf(page), {page.ref.group, page.ref.rung}, page.ref};
      ASSERT_NE(picked.block, nullptr);
    } else {
      const OpenLease* const lease = PickLease();
      if (lease == nullptr || lease->pages.empty()) return;
      picked = lease->pages[Pick(static_cast<uint32_t>(lease->pages.size()))];
    }
    ModelPage& page = picked.block->pages.at(picked.key);
    const bool expected = page.state == PageState::kSsd || page.state == PageState::kUnverified;
    const block::Extent elsewhere{.offset = ~uint64_t{0} - 4095, .bytes = 4096};
    ASSERT_FALSE(index_.BeginCheck(picked.ref, elsewhere));
    ASSERT_EQ(index_.BeginPromotion(picked.ref), page.state == PageState::kSsd);
    ASSERT_EQ(index_.BeginCheck(picked.ref, page.extent), page.state == PageState::kUnverified);
    if (!expected) return;
    page.state = PageState::kPromoting;
    ++picked.block->pins;
    promotion_ = {picked.ref, picked.block, picked.key};
    if (OneIn(2)) FinishPromotion();
  }

  void FinishPromotion() {
    ModelPage& page = promotion_.block->pages.at(promotion_.key);
    const bool in_place = static_cast<bool>(page.extent);
    if (OneIn(4)) {
      const bool corrupt = OneIn(2);
      index_.FailPromotion(promotion_.ref, corrupt ? PrefixIndex::PromotionFailure::kCorrupt
                                                   : PrefixIndex::PromotionFailure::kTryAgain);
      if (in_place) {
        corrupt ? DropBadCopy(page) : void(page.state = PageState::kUnverified);
      } else {
        page.state = PageState::kSsd;
        if (corrupt || page.sequence == 0) oracle_.Gone(page);
      }
    } else {
      const NewPage place = MakePage(0, 0);
      index_.FinishPromotion(promotion_.ref, in_place ? page.extent : place.extent, place.marks);
      if (!in_place) page.extent = place.extent;
      if (page.holders == 0) page.slots = 0;
      page.state = page.sequence == 0 ? PageState::kRam : PageState::kRamAndSsd;
      oracle_.by_extent()[page.extent.offset] = {promotion_.block, promotion_.key};
    }
    --promotion_.block->pins;
    oracle_.Settle(promotion_.block);
    promotion_ = {};
  }

  void DropBadCopy(ModelPage& page) {
    oracle_.by_extent().erase(page.extent.offset);
    if (page.holders > 0) {
      page.condemned.push_back(page.extent.offset);
    } else {
      oracle_.freed().insert(page.extent.offset);
    }
    page.extent = {};
    page.state = page.sequence != 0 ? PageState::kSsd : PageState::kGone;
  }
  OpenReservation* PickReservation() {
    if (reservations_.empty()) return nullptr;
    return &reservations_[Pick(static_cast<uint32_t>(reservations_.size()))];
  }

  std::mt19937_64 random_;
  PrefixIndex index_;
  Oracle oracle_;
  block::SpaceHandle space_;
  std::vector<OpenReservation> reservations_;
  std::vector<OpenLease> leases_;
  OpenPromotion promotion_;
  std::vector<SpillBlock> spill_;
  std::vector<BlockPtr> spill_blocks_;
  std::vector<ArchivedRecord> archive_;
  std::map<uint64_t, block::PageMarks> marks_;  // by extent offset
  std::deque<uint64_t> poisoned_;
  uint64_t next_offset_ = 0;
  // From where on numbers are too large for a page or a block, here and there in the middle.
  uint64_t next_sequence_ = std::array<uint64_t, 3>{0, (uint64_t{1} << 36) - 50,
                                                    (uint64_t{1} << 40) - 50}[GetParam().seed % 3];
};

}  // namespace prefixd::index
