// What remembered answers had in common, as a tree.
#include "cache/verbs/prefix_tree.h"
#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

constexpr uint32_t kBlock = 64;

Tokens Concat(const Tokens& a, const Tokens& b) {
  Tokens both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

struct Shown {
  uint32_t parent, from, to;
  uint64_t requests;
  bool operator==(const Shown&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Shown& shown) {
  return out << shown.requests << " read " << shown.from << ".." << shown.to << " after #"
             << shown.parent;
}
std::vector<Shown> Show(const std::vector<block::HotPrefix>& prefixes) {
  std::vector<Shown> shown;
  for (const block::HotPrefix& prefix : prefixes) {
    shown.push_back({prefix.parent, prefix.from_token, prefix.to_token, prefix.requests});
  }
  return shown;
}

class PrefixesTest : public CacheTest {
 protected:
  // Stores and reads what is given, with one further token that nobody stored.
  void Read(const Tokens& tokens) {
    Tokens more = tokens;
    more.push_back(1);
    const cache::Acquired acquired = Acquire(space_, more);
    ASSERT_EQ(acquired.match.restorable_tokens, tokens.size());
    ASSERT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
  }
  void OpenWith(const cache::Options& options) {
    Open(options);
    space_ = OpenSpace(identity_);
  }
  std::vector<Shown> Listed(uint32_t most = 20) {
    return Show(cache_->ListPrefixes(nullptr, most).prefixes);
  }

  const block::SpaceIdentity identity_ = SmallIdentity(kBlock, 16);
  block::SpaceHandle space_;
};

TEST_F(PrefixesTest, WhatAllRequestsReadIsOnePrefixAndWhatSomeReadGoesOnFromIt) {
  OpenWith(RamOnly());
  const Tokens system = RandomTokens(1, 10 * kBlock);
  const Tokens chat = Concat(system, RandomTokens(2, 4 * kBlock));
  const Tokens other = Concat(system, RandomTokens(3, 2 * kBlock));
  for (const Tokens& tokens : {chat, other}) ASSERT_TRUE(Store(identity_, space_, tokens).ok());
  for (int i = 0; i < 3; ++i) Read(chat);
  Read(other);
  EXPECT_EQ(Listed(), (std::vector<Shown>{{0, 0, 10 * kBlock, 4},
                                          {1, 10 * kBlock, 14 * kBlock, 3},
                                          {1, 10 * kBlock, 12 * kBlock, 1}}));
}

TEST_F(PrefixesTest, ARequestThatReadLessEndsAPrefixThere) {
  OpenWith(RamOnly());
  const Tokens tokens = RandomTokens(1, 8 * kBlock);
  ASSERT_TRUE(Store(identity_, space_, tokens).ok());
  Read(tokens);
  Read(Tokens(tokens.begin(), tokens.begin() + 3 * kBlock));
  EXPECT_EQ(Listed(), (std::vector<Shown>{{0, 0, 3 * kBlock, 2}, {1, 3 * kBlock, 8 * kBlock, 1}}));
}

TEST_F(PrefixesTest, BlocksThatWereReadInPartAreNotCounted) {
  OpenWith(RamOnly());
  const Tokens tokens = RandomTokens(1, 5 * kBlock + 40);  // the last block is a tail
  ASSERT_TRUE(Store(identity_, space_, tokens).ok());
  Read(tokens);
  Read(Tokens(tokens.begin(), tokens.begin() + 2 * kBlock + 10));
  Read(Tokens(tokens.begin(), tokens.begin() + 10));
  EXPECT_EQ(Listed(), (std::vector<Shown>{{0, 0, 2 * kBlock, 2}, {1, 2 * kBlock, 5 * kBlock, 1}}));
}

TEST_F(PrefixesTest, SpacesAreApartAndBytesAndTiersAreThoseOfNow) {
  OpenWith(WithSsd());
  const Tokens tokens = RandomTokens(1, 4 * kBlock);
  ASSERT_TRUE(Store(identity_, space_, tokens).ok());
  Read(tokens);
  block::SpaceIdentity salted = identity_;
  salted.model = "another";
  const block::SpaceHandle second = OpenSpace(salted);
  ASSERT_TRUE(Store(salted, second, tokens).ok());
  space_ = second;
  Read(tokens);
  Read(tokens);
  const block::HotPrefixes all = cache_->ListPrefixes(nullptr, 20);
  ASSERT_EQ(all.prefixes.size(), 2u);
  EXPECT_EQ(all.requests, 3u);
  EXPECT_EQ(all.prefixes[0].requests, 2u);
  const block::SpaceId first_id = all.prefixes[1].space;
  EXPECT_NE(all.prefixes[0].space, first_id);
  const block::HotPrefixes one = cache_->ListPrefixes(&first_id, 20);
  ASSERT_EQ(one.prefixes.size(), 1u);
  EXPECT_GT(one.prefixes[0].ram_bytes, 0u);
  EXPECT_EQ(one.prefixes[0].ssd_bytes, 0u);
  ASSERT_EQ(cache_->Flush(In(20000)).dirty_bytes, 0u);
  const block::HotPrefixes later = cache_->ListPrefixes(&first_id, 20);
  EXPECT_EQ(later.prefixes[0].ssd_bytes, one.prefixes[0].ram_bytes);
}

TEST_F(PrefixesTest, WhatWasClearedIsGone) {
  OpenWith(RamOnly());
  const Tokens tokens = RandomTokens(1, 4 * kBlock);
  ASSERT_TRUE(Store(identity_, space_, tokens).ok());
  Read(tokens);
  ASSERT_TRUE(cache_->Clear(nullptr).ok());
  const block::HotPrefixes found = cache_->ListPrefixes(nullptr, 20);
  EXPECT_TRUE(found.prefixes.empty());
  EXPECT_EQ(found.requests, 0u);
  EXPECT_EQ(found.gone, 1u);
}

index::PathBlock BlockAt(uint64_t id, uint32_t place) {
  return {.node_id = id, .begin = place * kBlock, .end = (place + 1) * kBlock};
}

TEST(PrefixTreeTest, ThoseOfWhichMostTokensWereReadAreKeptWithWhatIsAboveThem) {
  cache::PrefixTree tree;
  const block::SpaceId space{};
  // 1 - 2 - 3 - 4 read once; 1 - 5 read four times; 6 once.
  tree.Add(space, std::vector{BlockAt(4, 3), BlockAt(3, 2), BlockAt(2, 1), BlockAt(1, 0)}, 5);
  for (int i = 0; i < 4; ++i) tree.Add(space, std::vector{BlockAt(5, 1), BlockAt(1, 0)}, 2);
  tree.Add(space, std::vector{BlockAt(6, 0)}, 1);
  EXPECT_EQ(Show(tree.Hottest(9)),
            (std::vector<Shown>{{0, 0, 64, 5}, {1, 64, 128, 4}, {1, 64, 256, 1}, {0, 0, 64, 1}}));
  EXPECT_EQ(Show(tree.Hottest(2)), (std::vector<Shown>{{0, 0, 64, 5}, {1, 64, 128, 4}}));
  EXPECT_EQ(Show(tree.Hottest(1)), (std::vector<Shown>{{0, 0, 64, 5}}));
  EXPECT_TRUE(tree.Hottest(0).empty());
  EXPECT_DOUBLE_EQ(tree.Hottest(1)[0].age_s, 2);
}

TEST(PrefixTreeTest, APathThatEndsAtAKnownBlockGoesOnFromIt) {
  cache::PrefixTree tree;
  tree.Add({}, std::vector{BlockAt(2, 1), BlockAt(1, 0)}, 1);
  ASSERT_TRUE(tree.Knows(1));
  tree.Add({}, std::vector{BlockAt(3, 1), BlockAt(1, 0)}, 1);
  tree.Add({}, std::vector{BlockAt(4, 2), BlockAt(3, 1)}, 1);
  EXPECT_EQ(
      Show(tree.Hottest(9)),
      (std::vector<Shown>{{0, 0, 64, 3}, {1, 64, 128, 2}, {2, 128, 192, 1}, {1, 64, 128, 1}}));
}

}  // namespace
}  // namespace prefixd::testing
