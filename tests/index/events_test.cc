// An index built from events is the tree: over random moves, disconnects and lost events, beside
// the oracle, which knows nothing of events.
#include "event_follower.h"
#include "oracle_steps.h"

namespace prefixd::index {
namespace {

class EventsOracleTest : public OracleSteps {
 protected:
  static constexpr uint32_t kKept = 400;  // events: few, so that who is away too long loses some

  EventsOracleTest() : OracleSteps(kKept) {}

  // What the oracle says of a block with pages of both groups; nothing if one is missing.
  static block::StoredState ExpectedOf(const ModelBlock& block) {
    std::array<bool, 2> ram{}, ssd{};
    for (const auto& [key, page] : block.pages) {
      if (page.state == PageState::kGone) continue;
      if (page.extent) ram[key.first] = true;
      if (page.sequence != 0) ssd[key.first] = true;
    }
    block::StoredState state;
    state.stored = (ram[0] || ssd[0]) && (ram[1] || ssd[1]);
    if (!state.stored) return {};
    state.tiers = {.ram = ram[0] && ram[1], .ssd = ssd[0] && ssd[1], .mixed = false};
    state.tiers.mixed = !state.tiers.ram && !state.tiers.ssd;
    return state;
  }

  // By content: the oracle has no hashes.
  std::map<Prefix, block::StoredState> Expected() const {
    std::map<Prefix, block::StoredState> all;
    for (const auto& [prefix, block] : oracle_.blocks()) {
      const block::StoredState state = ExpectedOf(*block);
      if (block->in_tree && state.stored) all[prefix] = state;
    }
    return all;
  }

  void Compare() {
    const ToldBlocks dump = DumpOf(index_);
    ASSERT_TRUE(follower_.blocks() == dump) << "sequence " << follower_.sequence();
    const std::map<Prefix, block::StoredState> expected = Expected();
    ASSERT_EQ(dump.size(), expected.size());
    for (const auto& [prefix, state] : expected) {
      const size_t base = oracle_.BaseOf(prefix);
      const PrefixSequence sequence(prefix);
      block::BlockHash parent = block::RootHash({}), hash = parent;
      const block::BlockHasher hasher({}, GetParam().hash_bits);
      for (size_t begin = 0; begin < prefix.size(); begin += kBlockTokens) {
        const auto end = std::min(prefix.size(), begin + kBlockTokens);
        parent = hash;
        const auto content = block::CutContent(
            sequence.view().content, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
        hash = hasher.Hash(parent, {sequence.view().tokens.subspan(begin, end - begin), content});
      }
      const auto found = follower_.blocks().find({block::SpaceId{}, hash});
      ASSERT_NE(found, follower_.blocks().end());
      EXPECT_EQ(found->second.parent, parent);
      EXPECT_EQ(found->second.first_token, base);
      EXPECT_EQ(found->second.tokens, prefix.size() - base);
      ASSERT_TRUE(found->second.state == state) << "where a block is was told wrong";
      const auto tokens = sequence.view().tokens.subspan(base);
      EXPECT_TRUE(std::ranges::equal(found->second.token_ids, tokens));
    }
  }

  // Notes what is stored now, which is the state as of the last event.
  void NoteState() {
    states_[index_.LastEvent()] = DumpOf(index_);
    if (states_.size() > kKept) states_.erase(states_.begin());
  }
  // A follower that is told that what it has is whole has what was stored at that event.
  void CompareWithItsSequence() {
    const auto state = states_.find(follower_.sequence());
    if (!follower_.whole() || state == states_.end()) return;
    ++compared_with_past_;
    ASSERT_TRUE(follower_.blocks() == state->second)
        << "at event " << follower_.sequence() << " of " << index_.LastEvent();
  }

  EventFollower follower_{&index_};
  std::map<uint64_t, ToldBlocks> states_;  // by sequence
  uint64_t compared_with_past_ = 0;
};

// PREFIXD_EVENT_DISCONNECTS sets how many.
TEST_P(EventsOracleTest, S5AnIndexBuiltFromEventsIsTheTreeOverTenThousandRandomDisconnects) {
  const char* const wanted = std::getenv("PREFIXD_EVENT_DISCONNECTS");
  const int most = wanted == nullptr ? 10'000 : std::atoi(wanted);
  uint64_t compared = 0;
  for (int disconnects = 0; disconnects < most;) {
    Step();
    if (HasFatalFailure()) FAIL();
    CheckFreed();
    if (HasFatalFailure()) FAIL();
    if (!follower_.connected()) {
      if (OneIn(OneIn(8) ? 200 : 8)) follower_.Connect(!OneIn(4));
      continue;
    }
    if (OneIn(2)) NoteState();
    if (OneIn(2)) {
      follower_.ReadOne();
      CompareWithItsSequence();
      if (HasFatalFailure()) FAIL() << "after " << disconnects << " disconnects";
    }
    if (follower_.up_to_date() && OneIn(3)) {
      ++compared;
      Compare();
      if (HasFatalFailure()) FAIL() << "after " << disconnects << " disconnects";
    }
    if (!OneIn(12)) continue;
    follower_.Disconnect();
    ++disconnects;
  }
  follower_.Connect(true);
  follower_.ReadAll();
  Compare();
  EXPECT_GT(compared, static_cast<uint64_t>(most) / 50);
  EXPECT_GT(compared_with_past_, static_cast<uint64_t>(most));
  EXPECT_GT(follower_.resumed(), static_cast<uint64_t>(most) / 4);
  EXPECT_GT(follower_.snapshots(), static_cast<uint64_t>(most) / 10);
  for (const auto kind : {block::EventKind::kStored, block::EventKind::kChanged,
                          block::EventKind::kRemoved, block::EventKind::kCleared}) {
    EXPECT_GT(follower_.events(kind), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, EventsOracleTest,
                         testing::Values(Variant{"FullHash", 128, 50, 3}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace prefixd::index
