// Spaces that come with every user's salt (T3). PREFIXD_SALTS sets how many.
#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {
namespace {

class SaltsTest : public SharedCacheTest {
 protected:
  // More than the arena's space table of 1 MiB has room for.
  static int Users() {
    const char* const text = std::getenv("PREFIXD_SALTS");
    return text == nullptr ? 5000 : std::atoi(text);
  }
  static block::SpaceIdentity Of(int user) {
    block::SpaceIdentity identity = SmallIdentity();
    identity.salt = "user " + std::to_string(user) + std::string(200, 's');
    return identity;
  }
  // Each stores a little, one after the other.
  void ServeAll() {
    for (int user = 0; user < Users(); ++user) {
      const auto identity = Of(user);
      const auto opened = cache_->OpenSpace(session_, identity);
      ASSERT_TRUE(opened.ok()) << user << ": " << opened.status();
      ASSERT_EQ(opened->created, true);
      ASSERT_TRUE(
          Store(identity, opened->space, RandomTokens(static_cast<uint64_t>(user), 20)).ok());
      if (user % 500 == 499) most_ = std::max(most_, cache_->ListSpaces().size());
    }
  }
  uint64_t Part(const std::string& name) const {
    for (const auto& part : cache_->GetStats().ram_parts) {
      if (part.name == name) return part.value;
    }
    return 0;
  }
  size_t most_ = 0;  // spaces that were known at once
};

// T3: what is there does not grow with the users that there were.
TEST_F(SaltsTest, ManyUsersInTurnLeaveNothingBehindAndTheLastIsFoundAfterAKill) {
  const std::string life = LiveAndBeKilled(Shared(), [this] {
    ServeAll();
    EXPECT_LT(most_, 1500u);
    EXPECT_EQ(Counter("spaces.not_recorded"), 0u);
    EXPECT_GT(Counter("spaces.forgotten"), static_cast<uint64_t>(Users()) - 1500);
    EXPECT_LT(Part("index"), uint64_t{4} << 20) << "a sixteenth of the budget";
    return std::string("done ");
  });
  ASSERT_EQ(life, "done ");
  Open(Shared());
  const int last = Users() - 1;
  const auto identity = Of(last);
  EXPECT_EQ(ReadBack(identity, OpenSpace(identity), RandomTokens(static_cast<uint64_t>(last), 20)),
            20u);
}

// T3
TEST_F(SaltsTest, ASessionThatOpensManyEmptySpacesLeavesRoomToOthers) {
  Open(Shared());
  const auto mine = OpenSpace(Of(0));
  for (int user = 1; user < Users(); ++user) {
    const auto opened = cache_->OpenSpace(session_, Of(user));
    ASSERT_TRUE(opened.ok()) << user << ": " << opened.status();
    ASSERT_EQ(opened->differing_fields, std::vector<std::string>{"salt"});
  }
  EXPECT_LT(cache_->ListSpaces().size(), 1000u);
  cache::Request request;
  request.space = mine;
  request.tokens = RandomTokens(1, 20);
  EXPECT_TRUE(absl::IsNotFound(cache_->Acquire(session_, request, In(100)).status()))
      << "the space that was used longest ago is closed";
  EXPECT_EQ(OpenSpace(Of(Users() - 1)).value != 0, true) << "the last ones are open";
  const auto other = cache_->BeginSession("other");
  for (int user = 0; user < 50; ++user) {
    EXPECT_TRUE(cache_->OpenSpace(other, Of(Users() + user)).ok());
  }
}

TEST_F(SaltsTest, ASpaceThatIsOpenOrHasBlocksIsKept) {
  Open(Shared());
  const auto other = cache_->BeginSession("keeps");
  const auto empty = cache_->OpenSpace(other, Of(1));
  ASSERT_TRUE(empty.ok());
  const auto full = OpenSpace(Of(2));
  const Tokens tokens = RandomTokens(2, 40);
  ASSERT_TRUE(Store(Of(2), full, tokens).ok());
  for (int user = 10; user < 3000; ++user) ASSERT_TRUE(cache_->OpenSpace(session_, Of(user)).ok());
  EXPECT_GT(Counter("spaces.forgotten"), 1000u);
  cache::Request request;
  request.space = empty->space;
  request.tokens = tokens;
  EXPECT_TRUE(cache_->Acquire(other, request, In(100)).ok());
  EXPECT_EQ(OpenSpace(Of(2)), full) << "closed, and known all the time";
  EXPECT_EQ(ReadBack(Of(2), full, tokens), 40u);
}

// T3: what was forgotten is not read again by the next start.
TEST_F(SaltsTest, IdentitiesOfForgottenSpacesLeaveTheSsdToo) {
  Open(WithSsd());
  const auto identity = Of(1);
  const Tokens tokens = RandomTokens(1, 40);
  ASSERT_TRUE(Store(identity, OpenSpace(identity), tokens).ok());
  cache_->Flush(In(10000));
  const block::SpaceId id = block::IdOf(identity);
  ASSERT_TRUE(cache_->Clear(&id).ok());
  cache_->EndSession(session_);
  session_ = cache_->BeginSession("next");
  for (int user = 10; user < 40; ++user) ASSERT_TRUE(cache_->OpenSpace(session_, Of(user)).ok());
  ASSERT_TRUE(Store(Of(39), OpenSpace(Of(39)), tokens).ok());
  cache_->Flush(In(10000));  // tells the disk
  Open(WithSsd());
  std::vector<std::string> salts;
  for (const auto& space : cache_->ListSpaces()) salts.push_back(space.identity.salt);
  EXPECT_EQ(salts, std::vector<std::string>{Of(39).salt});
}

}  // namespace
}  // namespace prefixd::testing
