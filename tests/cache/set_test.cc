// One length for several spaces: ranks of a model, a draft beside its target, from RAM and SSD, and
// nothing held where a part fails.
#include "tests/cache/mixed_fixture.h"

namespace prefixd::testing {
namespace {

using block::ShortenReason;

// Rank `rank` of two: full groups in a format of their own.
block::SpaceIdentity RankIdentity(uint32_t rank) {
  block::SpaceIdentity identity = SmallIdentity(16, 4);
  identity.model = "ranks";
  identity.tensor_parallel = 2;
  for (block::LayerGroup& group : identity.groups) group.tensor_rank = rank;
  return identity;
}
// A small model of other layers, in blocks of another length, that guesses for MixedIdentity().
block::SpaceIdentity DraftIdentity() {
  block::SpaceIdentity identity = SmallIdentity(32, 1);
  identity.model = "draft";
  identity.role = block::Role::kDraft;
  for (block::LayerGroup& group : identity.groups) group.kv_heads = 1;
  return identity;
}

class SetTest : public MixedTest {
 protected:
  struct Member {
    block::SpaceIdentity identity;
    block::SpaceHandle space{};
    uint32_t stored = 0;  // tokens
  };
  std::vector<cache::Request> RequestsOf(const std::vector<Member>& members, const Tokens& tokens) {
    std::vector<cache::Request> requests;
    for (const Member& member : members) {
      cache::Request& request = requests.emplace_back();
      request.space = member.space;
      request.tokens = tokens;
    }
    return requests;
  }
  void StoreMember(const Member& member, const Tokens& tokens) {
    if (member.stored == 0) return;
    StoreAll(member.identity, member.space, Tokens(tokens.begin(), tokens.begin() + member.stored));
  }
  std::vector<cache::Acquired> AcquireAll(const std::vector<cache::Request>& requests) {
    auto set = cache_->AcquireSet(session_, requests, In(10000));
    EXPECT_TRUE(set.ok()) << set.status();
    return set.ok() ? *set : std::vector<cache::Acquired>();
  }
  // All of one length, every byte right; then given back.
  void CheckAndRelease(const std::vector<Member>& members, const std::vector<cache::Acquired>& set,
                       const Tokens& tokens) {
    for (size_t i = 0; i < set.size(); ++i) {
      const uint32_t length = set[0].match.restorable_tokens;
      EXPECT_EQ(set[i].match.restorable_tokens, length);
      EXPECT_EQ(FetchAndCheck(members[i].identity, set[i], tokens), length);
      EXPECT_EQ(Acquire(members[i].space, tokens, length).match.restorable_tokens, length)
          << "right for member " << i << " alone too";
    }
    EndAndBegin(members);
  }
  void EndAndBegin(const std::vector<Member>& members) {
    cache_->EndSession(session_);
    const block::Stats stats = cache_->GetStats();
    EXPECT_EQ(stats.leases, 0u);
    EXPECT_EQ(stats.leased_bytes, 0u);
    session_ = cache_->BeginSession("test");
    for (const Member& member : members) OpenSpace(member.identity);
  }
  static uint32_t LostToOthers(const cache::Acquired& acquired) {
    uint32_t lost = 0;
    for (const block::Shortening& shortening : acquired.match.shortened_by) {
      if (shortening.reason == ShortenReason::kCommonLength) lost += shortening.tokens_lost;
    }
    return lost;
  }
};

TEST_F(SetTest, RanksBeginWhereTheShortestOfThemDoes) {
  Open(RamOnly());
  const Tokens tokens = RandomTokens(1, 200);
  std::vector<Member> ranks = {{.identity = RankIdentity(0), .stored = 200},
                               {.identity = RankIdentity(1), .stored = 151}};
  for (Member& rank : ranks) {
    rank.space = OpenSpace(rank.identity);
    StoreMember(rank, tokens);
  }
  const std::vector<cache::Request> requests = RequestsOf(ranks, tokens);
  const std::vector<cache::Acquired> set = AcquireAll(requests);
  ASSERT_EQ(set.size(), 2u);
  EXPECT_EQ(set[0].match.restorable_tokens, 151u);
  EXPECT_EQ(set[0].match.matched_tokens, 200u);
  EXPECT_EQ(LostToOthers(set[0]), 49u);
  EXPECT_EQ(LostToOthers(set[1]), 0u);
  const auto matches = cache_->MatchSet(session_, requests);
  ASSERT_TRUE(matches.ok());
  for (size_t i = 0; i < set.size(); ++i) {
    EXPECT_EQ((*matches)[i].shortened_by, set[i].match.shortened_by);
    EXPECT_EQ((*matches)[i].ram_bytes, set[i].match.ram_bytes);
  }
  EXPECT_EQ(Counter("tokens.lost.common_length"), 49u);
  CheckAndRelease(ranks, set, tokens);
}

TEST_F(SetTest, ATargetWithStatesIsCutToASnapshotThatItsDraftReaches) {
  const Tokens tokens = RandomTokens(2, 200);
  std::vector<Member> members = {{.identity = MixedIdentity(), .stored = 200},
                                 {.identity = DraftIdentity(), .stored = 130}};
  Open(WithSsd());
  for (Member& member : members) {
    member.space = OpenSpace(member.identity);
    StoreMember(member, tokens);
  }
  const auto check = [&] {
    const std::vector<cache::Acquired> set = AcquireAll(RequestsOf(members, tokens));
    ASSERT_EQ(set.size(), 2u);
    EXPECT_EQ(set[0].match.restorable_tokens, 128u);  // a border of the lattice
    EXPECT_EQ(LostToOthers(set[0]), 199u - 128u);
    EXPECT_EQ(LostToOthers(set[1]), 2u);
    CheckAndRelease(members, set, tokens);
  };
  check();
  ASSERT_EQ(cache_->Flush(In(10000)).dirty_bytes, 0u);
  Open(WithSsd());
  for (Member& member : members) member.space = OpenSpace(member.identity);
  check();  // from SSD
  EXPECT_GT(Counter("pages.promoted"), 0u);
}

TEST_F(SetTest, WhereOneHasNothingAllHaveNothingAndHoldNothing) {
  Open(RamOnly());
  const Tokens tokens = RandomTokens(3, 100);
  std::vector<Member> members = {{.identity = MixedIdentity(), .stored = 100},
                                 {.identity = DraftIdentity(), .stored = 0}};
  for (Member& member : members) {
    member.space = OpenSpace(member.identity);
    StoreMember(member, tokens);
  }
  const std::vector<cache::Acquired> set = AcquireAll(RequestsOf(members, tokens));
  ASSERT_EQ(set.size(), 2u);
  for (const cache::Acquired& acquired : set) {
    EXPECT_EQ(acquired.match.restorable_tokens, 0u);
    EXPECT_FALSE(acquired.lease);
  }
  EXPECT_EQ(LostToOthers(set[0]), 99u);
  EXPECT_EQ(cache_->GetStats().leases, 0u);
}

TEST_F(SetTest, LoadingIsWeighedForAllTogether) {
  const Tokens tokens = RandomTokens(4, 400);
  std::vector<Member> members = {{.identity = MixedIdentity(300007), .stored = 400},
                                 {.identity = DraftIdentity(), .stored = 400}};
  Open(WithSsd());
  for (Member& member : members) {
    member.space = OpenSpace(member.identity);
    StoreMember(member, tokens);
  }
  ASSERT_EQ(cache_->Flush(In(10000)).dirty_bytes, 0u);
  Open(WithSsd());
  for (Member& member : members) member.space = OpenSpace(member.identity);
  std::vector<cache::Request> requests = RequestsOf(members, tokens);
  requests[0].prefill_tokens_per_s = 1e9;  // computing costs nothing
  const std::vector<cache::Acquired> set = AcquireAll(requests);
  ASSERT_EQ(set.size(), 2u);
  for (const cache::Acquired& acquired : set) {
    EXPECT_EQ(acquired.match.restorable_tokens, 0u);
    EXPECT_EQ(acquired.match.shortened_by.back().reason, ShortenReason::kSlowerThanPrefill);
    uint32_t lost = 0;
    for (const auto& shortening : acquired.match.shortened_by) lost += shortening.tokens_lost;
    EXPECT_EQ(lost, 400u);
  }
  EXPECT_EQ(cache_->GetStats().leases, 0u);
  requests[0].prefill_tokens_per_s = 0.001;
  const std::vector<cache::Acquired> slow = AcquireAll(requests);
  ASSERT_EQ(slow.size(), 2u);
  EXPECT_EQ(slow[0].match.restorable_tokens, 399u);
  CheckAndRelease(members, slow, tokens);
}

TEST_F(SetTest, APartThatIsAnErrorLeavesNothingHeld) {
  Open(RamOnly());
  const Tokens tokens = RandomTokens(5, 100);
  std::vector<Member> ranks = {{.identity = RankIdentity(0), .stored = 100},
                               {.identity = RankIdentity(1), .stored = 100}};
  for (Member& rank : ranks) {
    rank.space = OpenSpace(rank.identity);
    StoreMember(rank, tokens);
  }
  std::vector<cache::Request> requests = RequestsOf(ranks, tokens);
  requests[1].space = {4711};
  EXPECT_TRUE(absl::IsNotFound(cache_->AcquireSet(session_, requests, In(1000)).status()));
  requests[1] = requests[0];
  requests[1].groups = {7};
  EXPECT_TRUE(absl::IsInvalidArgument(cache_->AcquireSet(session_, requests, In(1000)).status()));
  EXPECT_EQ(cache_->GetStats().leases, 0u);
  EXPECT_EQ(cache_->GetStats().leased_bytes, 0u);
}

}  // namespace
}  // namespace prefixd::testing
