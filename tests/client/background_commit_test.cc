// StartCommit: what is stored while the sequence goes on is what the sequence held, and nobody
// waits for it who need not.
#include <chrono>
#include <optional>

#include "tests/client/daemon.h"

namespace prefixd {
namespace {

using std::chrono::milliseconds;

class BackgroundCommitTest : public testing::TestWithParam<bool> {  // with a shared arena
 protected:
  BackgroundCommitTest()
      : daemon_(directory_.socket(), {.arena = GetParam() ? arena_.path() : ""}),
        client_({.address = directory_.address(), .use_arena = GetParam()}),
        space_(client_.OpenSpace(spec_)) {
    EXPECT_TRUE(space_.ok()) << space_.status.message;
  }
  // Appends tokens of `all` from `begin` on, one by one, as decoding does.
  void Decode(Sequence& seq, const std::vector<uint32_t>& all, uint32_t begin) const {
    for (uint32_t t = begin; t < all.size(); ++t) {
      seq.PushToken(all[t]);
      AppendTokens(seq, spec_, all, t, t + 1);
    }
  }
  void ExpectStored(const std::vector<uint32_t>& tokens) {
    Sequence hit = space_.value().Begin(tokens);
    ASSERT_EQ(hit.WaitAll(), tokens.size());
    Sequence cold = space_.value().Begin(tokens, {.max_cached_tokens = 0});
    AppendTokens(cold, spec_, tokens, 0, static_cast<uint32_t>(tokens.size()));
    const auto count = static_cast<uint32_t>(tokens.size());
    EXPECT_EQ(GatherAll(hit, spec_, count), GatherAll(cold, spec_, count));
  }

  const SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, 4, 64, Dtype::kF16));
  const std::vector<uint32_t> all_ = Tokens(500, 1);
  const std::vector<uint32_t> prompt_{all_.begin(), all_.begin() + 215};  // ends inside a block
  const TempDirectory directory_;
  const ArenaPath arena_;
  Daemon daemon_;
  Client client_;
  Result<Space> space_;
};

TEST_P(BackgroundCommitTest, WhatIsAppendedMeanwhileChangesNothingOfWhatIsStored) {
  Sequence seq = space_.value().Begin(prompt_);
  AppendTokens(seq, spec_, prompt_, 0, 215);
  ASSERT_TRUE(seq.StartCommit({.sequence_end = true}));
  Decode(seq, all_, 215);  // into the block that is being stored, too
  const Result<CommitInfo> stored = seq.FinishCommit();
  ASSERT_TRUE(stored.ok()) << stored.status.message;
  EXPECT_EQ(stored.value().stored_tokens, 215u);
  ExpectStored(prompt_);
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  ExpectStored(all_);
  const std::vector<Packed> held = GatherAll(seq, spec_, 500);
  Sequence cold = space_.value().Begin(all_, {.max_cached_tokens = 0});
  AppendTokens(cold, spec_, all_, 0, 500);
  EXPECT_EQ(held, GatherAll(cold, spec_, 500)) << "blocks that were swapped for stored ones";
}

// The cache holds the block with another's tokens behind the prompt's.
TEST_P(BackgroundCommitTest, ATailThatGrewIsNotTakenForAnothersContinuation) {
  {
    Sequence first = space_.value().Begin(all_);
    AppendTokens(first, spec_, all_, 0, 500);
    ASSERT_TRUE(first.Commit({.sequence_end = true}).ok());
  }
  std::vector<uint32_t> mine = prompt_;
  for (uint32_t token : Tokens(100, 5)) mine.push_back(token);
  Sequence seq = space_.value().Begin(prompt_, {.max_cached_tokens = 214});
  ASSERT_EQ(seq.WaitAll(), 214u);
  AppendTokens(seq, spec_, prompt_, 214, 215);
  ASSERT_TRUE(seq.StartCommit({.sequence_end = true}));
  Decode(seq, mine, 215);
  ASSERT_TRUE(seq.FinishCommit().ok());
  Sequence cold = space_.value().Begin(mine, {.max_cached_tokens = 0});
  AppendTokens(cold, spec_, mine, 0, 315);
  EXPECT_EQ(GatherAll(seq, spec_, 315), GatherAll(cold, spec_, 315));
}

TEST_P(BackgroundCommitTest, BlocksAreStoredAsTheyFillAndTheTotalIsToldOnce) {
  Sequence seq = space_.value().Begin(prompt_);
  AppendTokens(seq, spec_, prompt_, 0, 215);
  for (uint32_t t = 215; t < 500; ++t) {
    seq.PushToken(all_[t]);
    AppendTokens(seq, spec_, all_, t, t + 1);
    if ((t + 1) % 64 == 0)
      seq.StartCommit();  // refused while an earlier one runs: a later one does
  }
  ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  const Result<CommitInfo> before = seq.FinishCommit();
  ASSERT_TRUE(before.ok()) << before.status.message;
  EXPECT_GE(before.value().stored_tokens, 256u);
  EXPECT_EQ(seq.FinishCommit().value().stored_tokens, 0u);
  EXPECT_FALSE(seq.StartCommit({.sequence_end = true})) << "nothing new";
  ExpectStored(all_);
}

// Going back before what is being stored waits for it: the cache keeps what was committed.
TEST_P(BackgroundCommitTest, WritingAStoredBlockAgainWaits) {
  Sequence seq = space_.value().Begin(prompt_);
  AppendTokens(seq, spec_, prompt_, 0, 215);
  ASSERT_TRUE(seq.StartCommit({.sequence_end = true}));
  std::vector<uint32_t> other = Tokens(215, 9);
  AppendTokens(seq, spec_, other, 0, 215);
  ASSERT_TRUE(seq.FinishCommit().ok());
  ExpectStored(prompt_);
}

TEST_P(BackgroundCommitTest, ASequenceThatEndsAtOnceWasStoredAllTheSame) {
  {
    Sequence seq = space_.value().Begin(prompt_);
    AppendTokens(seq, spec_, prompt_, 0, 215);
    ASSERT_TRUE(seq.StartCommit({.sequence_end = true}));
  }
  ExpectStored(prompt_);
}

INSTANTIATE_TEST_SUITE_P(Arena, BackgroundCommitTest, testing::Bool());

TEST(BackgroundCommitWithoutDaemonTest, TheErrorComesFromFinishAndOnce) {
  const TempDirectory directory;
  const SpaceSpec spec = SmallSpace(Raw(Dtype::kF32));
  Client client({.address = directory.address(), .connect_deadline = milliseconds(0)});
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok());
  const std::vector<uint32_t> tokens = Tokens(100, 1);
  Sequence seq = space.value().Begin(tokens);
  AppendTokens(seq, spec, tokens, 0, 100);
  seq.StartCommit({.sequence_end = true});
  EXPECT_EQ(seq.FinishCommit().status.code, StatusCode::kUnavailable);
  EXPECT_TRUE(seq.FinishCommit().ok());
  EXPECT_FALSE(Sequence().StartCommit());
  EXPECT_FALSE(Sequence().FinishCommit().ok());
}

}  // namespace
}  // namespace prefixd
