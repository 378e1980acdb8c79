// What a router counts from events alone is what Match answers, also with sliding windows and
// snapshots.
#include "event_follower.h"
#include "restorable_model.h"

namespace prefixd::index {
namespace {

class EventsHybridTest : public GrownTest {
 protected:
  // By the rules of StoredBlock in admin.proto, from what events told.
  bool CountsAsRestorable(const SpaceShape& shape, const Tokens& request, uint32_t r) const {
    if (r == 0) return true;
    block::BlockHash parent = block::RootHash(shape.id);
    std::vector<const Told*> path;
    for (uint32_t begin = 0; begin < r; begin += kBlockTokens) {
      const uint32_t end = std::min(begin + kBlockTokens, r);
      const bool last = end == r;
      const auto found = std::ranges::find_if(follower_.blocks(), [&](const auto& entry) {
        const auto& [name, told] = entry;
        const bool here = name.first == shape.id && told.parent == parent &&
                          told.first_token == begin && told.tokens >= end - begin &&
                          (last || told.tokens == kBlockTokens);
        return here &&
               std::equal(request.begin() + begin, request.begin() + end, told.token_ids.begin()) &&
               (!last || Serves(shape, path, told, r));
      });
      if (found == follower_.blocks().end()) return false;
      path.push_back(&found->second);
      parent = found->first.second;
    }
    return true;
  }
  static bool Serves(const SpaceShape& shape, std::vector<const Told*> path, const Told& last,
                     uint32_t r) {
    path.push_back(&last);
    for (uint32_t group = 0; group < shape.rungs.size(); ++group) {
      const GroupRule rule = shape.RuleOf(group);
      if (rule.kind == kState && !last.state.snapshots.test(r - last.first_token - 1)) return false;
      if (rule.kind != kSliding) continue;
      for (uint32_t token = 0; token < r; ++token) {
        const bool needed = token < rule.sink_tokens || uint64_t{token} + rule.window >= r;
        if (needed && (path[token / kBlockTokens]->state.windows >> group & 1) == 0) return false;
      }
    }
    return true;
  }

  EventFollower follower_{&index_};
};

TEST_F(EventsHybridTest, S5ARouterCountsFromEventsWhatMatchAnswersForEveryKindOfGroup) {
  follower_.Connect(false);
  uint64_t counted = 0;
  for (int i = 0; i < 2000 && !HasFailure(); ++i) {
    const size_t space = Pick(static_cast<uint32_t>(shapes_.size()));
    Model model(shapes_[space]);
    Sequence sequence = NewSequence(1 + Pick(5 * kBlockTokens));
    sequence.content.clear();  // events tell content too, but a router need not know what it is
    Grow(space, sequence, model);
    if (OneIn(2)) follower_.Connect(!OneIn(3));
    follower_.ReadAll();
    ASSERT_TRUE(follower_.blocks() == DumpOf(index_));
    for (int asked = 0; asked < 3; ++asked) {
      Sequence request = OneIn(2) ? sequence : Diverging(sequence);
      const block::MatchAnswer answer =
          index_.Match(spaces_[space], request.view(), {.causal_content = true});
      auto longest = static_cast<uint32_t>(request.tokens.size());
      while (!CountsAsRestorable(shapes_[space], request.tokens, longest)) --longest;
      ASSERT_EQ(longest, answer.restorable_tokens) << "space " << space;
      counted += longest;
    }
    index_.Clear(spaces_[space]);
  }
  EXPECT_GT(counted, 10'000u);
}

}  // namespace
}  // namespace prefixd::index
