// Model test of spaces with sliding and state groups: seeded random operations against the list of
// what was stored. A hit ends at a snapshot that was stored for exactly its tokens, at the longest
// one that is there, and every byte of it is right; restarts included.
#include <set>

#include "tests/cache/mixed_fixture.h"

namespace prefixd::testing {
namespace {

class MixedModelTest : public MixedTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  // A stored sequence cut somewhere and continued otherwise; few distinct tokens.
  Tokens NextTokens() {
    Tokens tokens;
    if (!stored_.empty() && random_() % 5 != 0) {
      tokens = stored_[random_() % stored_.size()];
      tokens.resize(random_() % (tokens.size() + 1));
    }
    const size_t extra = random_() % 70 + (tokens.empty() ? 1 : 0);
    for (size_t i = 0; i < extra; ++i) tokens.push_back(static_cast<Token>(random_() % 3));
    return tokens;
  }
  void StoreSome() {
    const Tokens tokens = NextTokens();
    const Plan plan = Reserve(space_, tokens);
    ASSERT_TRUE(PutPages(identity_, plan).ok());
    std::set<uint32_t> positions;
    for (const uint32_t wanted : plan.reserved.snapshot_tokens) {
      if (random_() % 3 != 0) positions.insert(wanted);
    }
    positions.insert(static_cast<uint32_t>(1 + random_() % tokens.size()));
    for (const uint32_t position : positions) {
      ASSERT_TRUE(PutSnapshot(identity_, plan, position).ok());
    }
    ASSERT_TRUE(Commit(plan).ok());
    stored_.push_back(tokens);
    for (const uint32_t position : positions) {
      snapshots_.insert(Tokens(tokens.begin(), tokens.begin() + position));
    }
  }
  void Read() {
    const Tokens request = NextTokens();
    const auto limit = static_cast<uint32_t>(1 + random_() % request.size());
    uint32_t expected = limit;
    while (expected > 0 &&
           !snapshots_.contains(Tokens(request.begin(), request.begin() + expected))) {
      --expected;
    }
    const cache::Acquired acquired = Acquire(space_, request, limit);
    EXPECT_EQ(acquired.match.restorable_tokens, expected);
    EXPECT_EQ(FetchAndCheck(identity_, acquired, request), expected);
    hits_ += expected > 0;
    if (!acquired.lease) return;
    if (random_() % 4 == 0) return kept_.push_back(acquired.lease);
    EXPECT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
  }

  const block::SpaceIdentity identity_ = MixedIdentity(777);
  std::mt19937_64 random_{GetParam()};
  std::vector<Tokens> stored_;
  std::set<Tokens> snapshots_;  // the tokens before each
  std::vector<block::LeaseId> kept_;
  block::SpaceHandle space_;
  int hits_ = 0;
};

TEST_P(MixedModelTest, AHitEndsAtTheLongestSnapshotAndIsRightToTheByte) {
  const cache::Options options = SharedWithSsd();
  Open(options);
  space_ = OpenSpace(identity_);
  for (int step = 0; step < 600 && !HasFailure(); ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const uint64_t dice = random_() % 100;
    if (dice < 45) {
      StoreSome();
    } else if (dice < 90) {
      Read();
    } else if (dice < 96 && !kept_.empty()) {
      EXPECT_TRUE(cache_->Release(session_, {.lease = kept_.back()}).ok());
      kept_.pop_back();
    } else if (dice < 98) {
      cache_->Flush(In(20000));
    } else if (dice == 99) {
      kept_.clear();
      Open(options);
      space_ = OpenSpace(identity_);
    }
  }
  EXPECT_GT(hits_, 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, MixedModelTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace prefixd::testing
