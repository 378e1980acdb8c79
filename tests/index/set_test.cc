// Requests with one length: against the definition, tried for every length in every member, and
// what becomes of the leases.
#include <cstring>

#include "base/steps.h"
#include "tests/index/restorable_model.h"

namespace prefixd::index {
namespace {

class SetTest : public GrownTest {
 protected:
  struct Member {
    size_t space = 0;
    Model model;
    Sequence request;
    Model::Usable usable{};
    MatchOptions options{};
    uint32_t own = 0;  // its length alone
  };

  Member NewMember(size_t space, const Sequence& sequence) {
    Member member{.space = space, .model = Model(shapes_[space]), .request = sequence};
    if (!OneIn(12)) Grow(space, sequence, member.model);  // else: nothing of it is stored
    if (OneIn(2)) Grow(space, Diverging(sequence), member.model);
    if (OneIn(3)) {
      member.request = sequence.Cut(0, 1 + Pick(static_cast<uint32_t>(sequence.tokens.size())));
    }
    const SpaceShape& shape = shapes_[space];
    for (uint32_t group = 0; group < shape.rungs.size(); ++group) {
      if (!OneIn(4)) member.usable.groups.push_back(group);
      member.usable.rungs.push_back(OneIn(3) ? 1 : ~uint64_t{0});
    }
    if (member.usable.groups.empty()) member.usable.groups.push_back(0);
    member.options.selection = {.groups = member.usable.groups, .rungs = member.usable.rungs};
    member.options.causal_content = OneIn(2);
    const auto size = static_cast<uint32_t>(member.request.tokens.size());
    if (OneIn(3)) member.options.max_tokens = Pick(size + 1);
    const block::MatchAnswer alone =
        index_.Match(spaces_[space], member.request.view(), member.options);
    member.own = std::min({size, member.options.max_tokens, alone.matched_tokens});
    while (!IsRight(member, member.own)) --member.own;
    return member;
  }
  static bool IsRight(const Member& member, uint32_t tokens) {
    return member.model.IsRestorable(member.request, tokens, member.usable,
                                     member.options.causal_content);
  }
  std::vector<SetItem> ItemsOf(const std::vector<Member>& members) const {
    std::vector<SetItem> items;
    for (const Member& member : members) {
      items.push_back({spaces_[member.space], member.request.view(), member.options});
    }
    return items;
  }
  void Check(const std::vector<Member>& members);

  uint64_t shorter_than_all_ = 0;  // sets whose length is none of its members' own
};

void SetTest::Check(const std::vector<Member>& members) {
  uint32_t least = ~uint32_t{0};
  for (const Member& member : members) least = std::min(least, member.own);
  uint32_t common = least;
  const auto all_right = [&](uint32_t tokens) {
    return std::ranges::all_of(members,
                               [&](const Member& member) { return IsRight(member, tokens); });
  };
  while (!all_right(common)) --common;
  shorter_than_all_ += common < least && common > 0 ? 1 : 0;
  const std::vector<block::MatchAnswer> answers = index_.MatchSet(ItemsOf(members));
  EXPECT_EQ(index_.Counts().leases, 0u);
  const std::vector<Acquired> set = index_.AcquireSet(ItemsOf(members), {1});
  EXPECT_EQ(index_.Counts().leases, common > 0 ? members.size() : 0);
  for (size_t i = 0; i < members.size(); ++i) {
    const block::MatchAnswer& answer = set[i].answer;
    ASSERT_EQ(answer.restorable_tokens, common) << "member " << i;
    EXPECT_EQ(answers[i].restorable_tokens, common);
    EXPECT_EQ(answers[i].shortened_by, answer.shortened_by);
    EXPECT_EQ(answers[i].ssd_bytes, answer.ssd_bytes);
    uint32_t lost = 0, to_others = 0;
    for (const block::Shortening& shortening : answer.shortened_by) {
      lost += shortening.tokens_lost;
      if (shortening.reason == block::ShortenReason::kCommonLength) {
        to_others += shortening.tokens_lost;
      }
    }
    EXPECT_EQ(to_others, members[i].own - common);
    EXPECT_EQ(lost, answer.matched_tokens - common);
    EXPECT_EQ(static_cast<bool>(set[i].lease), common > 0);
    if (common == 0) continue;
    // The pages are those of a request that asked for no more.
    MatchOptions options = members[i].options;
    options.max_tokens = common;
    const Acquired alone =
        index_.Acquire(spaces_[members[i].space], members[i].request.view(), options, {2});
    EXPECT_EQ(set[i].pages.size(), alone.pages.size());
    EXPECT_EQ(answer.ssd_bytes, alone.answer.ssd_bytes);
    EXPECT_TRUE(index_.Release(alone.lease).ok());
    EXPECT_TRUE(index_.Release(set[i].lease).ok());
  }
  EXPECT_EQ(index_.Counts().leased_bytes, 0u);
}

// PREFIXD_RESTORABLE_STATES sets how many sets of trees are tried.
TEST_F(SetTest, ItsLengthIsTheLongestThatIsRightForEveryMember) {
  const char* const wanted = std::getenv("PREFIXD_RESTORABLE_STATES");
  const int states = wanted == nullptr ? 4000 : std::atoi(wanted);
  for (int i = 0; i < states && !HasFailure(); ++i) {
    const Sequence sequence = NewSequence(2 + Pick(5 * kBlockTokens));
    std::vector<size_t> spaces(shapes_.size());
    std::iota(spaces.begin(), spaces.end(), 0);
    std::ranges::shuffle(spaces, random_);
    std::vector<Member> members;
    for (uint32_t n = 2 + Pick(3); n > 0; --n) {
      members.push_back(NewMember(spaces[n - 1], sequence));
    }
    Check(members);
    if (i % 500 == 0) {
      EXPECT_TRUE(index_.Validate().ok()) << index_.Validate();
    }
    for (const Member& member : members) index_.Clear(spaces_[member.space]);
  }
  EXPECT_GT(shorter_than_all_, static_cast<uint64_t>(states) / 200);
}

// Two spaces of full groups, the draft's blocks half as long.
class TwoSpacesTest : public IndexTest {
 protected:
  explicit TwoSpacesTest(PrefixIndex::Options options = {}) : IndexTest(32, {1}, options) {
    SpaceShape shape{.id = {}, .block_tokens = 16, .rungs = {1, 1}};
    shape.id[0] = std::byte{8};
    draft_ = index_.AddSpace(shape);
  }
  void StoreDraft(const Tokens& tokens) {
    std::swap(space_, draft_);
    Store(tokens);
    std::swap(space_, draft_);
  }
  std::vector<Acquired> AcquireBoth(const Tokens& tokens, const MatchOptions& options = {}) {
    const std::vector<SetItem> items = {{space_, {tokens, {}}, options},
                                        {draft_, {tokens, {}}, options}};
    return index_.AcquireSet(items, kMe);
  }

  block::SpaceHandle draft_;
};

TEST_F(TwoSpacesTest, ADraftThatHasLessCutsItsTargetAndSaysSo) {
  const Tokens tokens = Count(0, 200);
  Store(tokens);
  StoreDraft(FirstOf(tokens, 151));
  const std::vector<Acquired> both = AcquireBoth(tokens, {.max_tokens = 199});
  ASSERT_EQ(both.size(), 2u);
  using block::Shortening, block::ShortenReason;
  EXPECT_EQ(both[0].answer.shortened_by,
            (std::vector<Shortening>{{block::kAllGroups, ShortenReason::kMaxTokens, 1},
                                     {block::kAllGroups, ShortenReason::kCommonLength, 48}}));
  EXPECT_TRUE(both[1].answer.shortened_by.empty());
  EXPECT_EQ(both[0].pages.size(), 5u);   // of 32 tokens
  EXPECT_EQ(both[1].pages.size(), 20u);  // of 16, in two groups
  EXPECT_EQ(both[0].pages.back().tokens, 151u - 128);
  EXPECT_EQ(both[0].answer.ram_bytes, 5 * kPageBytes);
  EndSession(kMe);
}

TEST_F(TwoSpacesTest, WhereOneMemberHasNothingNobodyHoldsAnything) {
  const Tokens tokens = Count(0, 200);
  Store(tokens);
  const std::vector<Acquired> both = AcquireBoth(tokens);
  EXPECT_FALSE(both[0].lease || both[1].lease);
  EXPECT_EQ(both[0].answer.matched_tokens, 200u);
  EXPECT_EQ(both[0].answer.shortened_by.back().tokens_lost, 200u);
  EXPECT_EQ(both[0].answer.ram_bytes, 0u);
  EXPECT_TRUE(index_.ListLeases().empty());
}

// Items of two tokens, one behind the other from `first` on.
std::vector<block::ContentKey> Pairs(uint32_t first, uint32_t tokens) {
  std::vector<block::ContentKey> keys;
  for (uint32_t start = first; start + 2 <= tokens; start += 2) {
    keys.push_back({.start = start, .length = 2});
    std::memcpy(keys.back().digest.data(), &start, sizeof(start));
  }
  return keys;
}

// A sliding group whose window holds every token, beside a full one.
class CrossedContentTest : public TwoSpacesTest {
 protected:
  CrossedContentTest() {
    SpaceShape shape{.id = {}, .block_tokens = 16, .rungs = {1, 1}};
    shape.id[0] = std::byte{9};
    shape.rules = {{}, {.kind = kSliding, .window = 1u << 20}};
    sliding_ = index_.AddSpace(shape);
  }
  // What the set costs whose members agree nowhere: no length cuts neither's items.
  uint64_t StepsOfSet(uint32_t tokens, block::SpaceHandle other) {
    const Tokens all = Count(0, tokens);
    const std::vector<block::ContentKey> even = Pairs(0, tokens), odd = Pairs(1, tokens);
    Store(block::SequenceView{all, even});
    std::swap(space_, other);
    Store(block::SequenceView{all, odd});
    std::swap(space_, other);
    const MatchOptions options{.max_tokens = tokens - 1};
    const std::vector<SetItem> items = {{space_, {all, even}, options},
                                        {other, {all, odd}, options}};
    const uint64_t before = base::steps + index_.Counts().comparisons;
    EXPECT_EQ(index_.MatchSet(items)[0].restorable_tokens, 0u);
    EXPECT_FALSE(index_.AcquireSet(items, kMe)[1].lease);
    return base::steps + index_.Counts().comparisons - before;
  }

  block::SpaceHandle sliding_;
};

TEST_F(CrossedContentTest, ASetCostsWhatItsRequestsAreLong) {
  for (const block::SpaceHandle other : {draft_, sliding_}) {
    const uint64_t once = StepsOfSet(1000, other);
    const uint64_t twice = StepsOfSet(2000, other);
    EXPECT_LE(twice, 2 * once + 4000);  // and a comparison more a block
    EXPECT_GE(once, 1000u);
    EXPECT_LE(once, 20 * 1000u);
  }
}

class SetQuotaTest : public TwoSpacesTest {
 protected:
  SetQuotaTest() : TwoSpacesTest({.limits = {.session_lease_bytes = 14 * block::kExtentUnit}}) {}
};

TEST_F(SetQuotaTest, WhatTheQuotaDoesNotHoldIsCutForAll) {
  const Tokens tokens = Count(0, 320);
  Store(tokens);  // 10 pages
  StoreDraft(tokens);
  const std::vector<Acquired> both = AcquireBoth(tokens);
  // 3 pages of 32 tokens and 2 x 5 of 16; a token more takes 2 others.
  for (const Acquired& one : both) {
    EXPECT_EQ(one.answer.restorable_tokens, 80u);
    EXPECT_EQ(one.answer.shortened_by.back().reason, block::ShortenReason::kLeaseQuota);
    EXPECT_EQ(one.answer.shortened_by.back().tokens_lost, 240u);
  }
  EXPECT_EQ(index_.Counts().leased_bytes, 13 * block::kExtentUnit);
  EndSession(kMe);
}

}  // namespace
}  // namespace prefixd::index
