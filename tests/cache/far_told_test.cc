// Hosts tell each other which spaces they have, for people who ask why they do not share.
#include "tests/cache/far_fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FarToldTest : public FarTest {};

TEST_F(FarToldTest, R1WhichSpacesOtherHostsHaveIsToldToWhoAsks) {
  identity_.salt = "one user's";
  cache::Options options = WithRemote();
  options.remote.host = "host b";
  OpenHost(options);
  ASSERT_TRUE(IsTold(1));
  block::SpaceIdentity other = identity_;
  other.salt = "another user's";
  other.rope.theta = 12345;
  Open(WithRemote());
  OpenSpace(other);
  const auto told = cache_->SpacesOfOthers(In(1000));
  ASSERT_TRUE(told.ok()) << told.status();
  ASSERT_THAT(*told, SizeIs(1));
  EXPECT_EQ((*told)[0].host, "host b");
  EXPECT_EQ((*told)[0].identity.salt, "") << "salts are not told";
  other.salt = "";
  EXPECT_THAT(block::DifferingFields((*told)[0].identity, other), ElementsAre("rope.theta"));
  EXPECT_EQ(Counter("remote.bad.told_space"), 0u);
}

TEST_F(FarToldTest, ASpaceThatThisHostHasIsNotAnotherHosts) {
  identity_.salt = "one user's";
  OpenHost();
  ASSERT_TRUE(IsTold(1));
  Open(WithRemote());
  EXPECT_THAT(*cache_->SpacesOfOthers(In(1000)), SizeIs(1));
  identity_.salt = "another user's";
  OpenSpace(identity_);
  EXPECT_THAT(*cache_->SpacesOfOthers(In(1000)), IsEmpty());
}

TEST_F(FarToldTest, R9SpacesAreNotToldToAnotherTenant) {
  OpenHost();
  ASSERT_TRUE(IsTold(1));
  Open(WithRemote("another"));
  EXPECT_THAT(*cache_->SpacesOfOthers(In(1000)), IsEmpty());
  EXPECT_EQ(Counter("remote.bad.told_space"), 0u);
}

TEST_F(FarToldTest, R5WhatIsToldAndCannotBeReadIsLeftOutAndCounted) {
  OpenHost();
  ASSERT_TRUE(IsTold(1));
  store_->ForEachPost([](std::string& text) { text[text.size() / 2] ^= 1; });
  Open(WithRemote());
  EXPECT_THAT(*cache_->SpacesOfOthers(In(1000)), IsEmpty());
  EXPECT_EQ(Counter("remote.bad.told_space"), 1u);
}

TEST_F(FarToldTest, WhatNobodyToldOfForADayIsLeftOut) {
  OpenHost();
  ASSERT_TRUE(IsTold(1));
  cache_.reset();
  clock_.Advance(int64_t{86'400} * 1'000'000);
  Open(WithRemote());
  EXPECT_THAT(*cache_->SpacesOfOthers(In(1000)), IsEmpty());
}

TEST_F(FarToldTest, AStoreThatIsDownIsToldToWhoAsksForSpaces) {
  OpenHost();
  store_->down = true;
  EXPECT_EQ(cache_->SpacesOfOthers(In(1000)).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace prefixd::testing
