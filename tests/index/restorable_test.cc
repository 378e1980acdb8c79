// The restorable length against its definition, tried for every length.
#include <cstdlib>

#include "tests/index/restorable_model.h"

namespace prefixd::index {
namespace {

class RestorableTest : public GrownTest {
 protected:
  void Ask(size_t space, const Sequence& request, const Model& model);

  uint64_t shortened_ = 0;
};

void RestorableTest::Ask(size_t space, const Sequence& request, const Model& model) {
  const SpaceShape& shape = shapes_[space];
  MatchOptions options;
  Model::Usable usable;
  for (uint32_t group = 0; group < shape.rungs.size(); ++group) {
    if (!OneIn(4)) usable.groups.push_back(group);
    usable.rungs.push_back(OneIn(3) ? 1 : ~uint64_t{0});
  }
  if (usable.groups.empty()) usable.groups.push_back(0);
  options.selection.groups = usable.groups;
  options.selection.rungs = usable.rungs;
  options.causal_content = OneIn(2);
  const auto size = static_cast<uint32_t>(request.tokens.size());
  if (OneIn(2)) options.max_tokens = Pick(size + 1);
  const block::MatchAnswer answer = index_.Match(spaces_[space], request.view(), options);
  uint32_t expected = std::min({size, options.max_tokens, answer.matched_tokens});
  while (!model.IsRestorable(request, expected, usable, options.causal_content)) --expected;
  ASSERT_EQ(answer.restorable_tokens, expected) << "space " << space;
  uint32_t lost = 0;
  for (const block::Shortening& shortening : answer.shortened_by) {
    lost += shortening.tokens_lost;
    ++shortened_;
    if (shortening.group == block::kAllGroups) continue;
    const bool of_state = shortening.reason == block::ShortenReason::kNoStateSnapshot;
    const bool of_window = shortening.reason == block::ShortenReason::kWindowGone;
    EXPECT_EQ(shape.IsState(shortening.group), of_state);
    if (of_window) {
      EXPECT_EQ(shape.RuleOf(shortening.group).kind, kSliding);
    }
  }
  EXPECT_EQ(lost, answer.matched_tokens - expected);
  const Acquired acquired = index_.Acquire(spaces_[space], request.view(), options, {1});
  EXPECT_EQ(acquired.answer.restorable_tokens, expected);
  EXPECT_EQ(acquired.answer.shortened_by, answer.shortened_by);
  size_t pages = 0;
  for (uint32_t group : usable.groups) {
    const GroupRule rule = shape.RuleOf(group);
    for (uint32_t first = 0; first < expected; first += kBlockTokens) {
      const bool last = first + kBlockTokens >= expected;
      const bool in_window = first + kBlockTokens + uint64_t{rule.window} > expected;
      pages += rule.kind == kState  ? last
               : rule.kind == kFull ? 1
                                    : in_window || first < rule.sink_tokens;
    }
  }
  EXPECT_EQ(acquired.pages.size(), pages);
  if (acquired.lease) {
    EXPECT_TRUE(index_.Release(acquired.lease).ok());
  }
}

// PREFIXD_RESTORABLE_STATES sets how many trees are tried; the issue asks for 10^6.
TEST_F(RestorableTest, ItIsTheLongestThatIsRightForEveryGroup) {
  const char* const wanted = std::getenv("PREFIXD_RESTORABLE_STATES");
  const int states = wanted == nullptr ? 10000 : std::atoi(wanted);
  for (int i = 0; i < states && !HasFailure(); ++i) {
    const size_t space = Pick(static_cast<uint32_t>(shapes_.size()));
    Model model(shapes_[space]);
    const Sequence sequence = NewSequence(1 + Pick(5 * kBlockTokens));
    Grow(space, sequence, model);
    if (OneIn(2)) Grow(space, Diverging(sequence), model);
    for (int asked = 0; asked < 3; ++asked) {
      Sequence request = OneIn(2) ? sequence : Diverging(sequence);
      request = request.Cut(0, 1 + Pick(static_cast<uint32_t>(request.tokens.size())));
      Ask(space, request, model);
    }
    if (i % 1000 == 0) {
      EXPECT_TRUE(index_.Validate().ok()) << index_.Validate();
    }
    index_.Clear(spaces_[space]);
  }
  EXPECT_GT(shortened_, static_cast<uint64_t>(states) / 2);
}

}  // namespace
}  // namespace prefixd::index
