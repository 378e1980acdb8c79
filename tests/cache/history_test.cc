// What is remembered of answers, and for how long.
#include "cache/tables/history.h"

#include "fixture.h"

namespace prefixd::testing {
namespace {

block::PastAnswer PastOf(const std::string& id, uint32_t requested, uint32_t restorable) {
  block::PastAnswer past;
  past.request_id = id;
  past.requested_tokens = requested;
  past.match.restorable_tokens = restorable;
  return past;
}

TEST(HistoryTest, TheLastFourThousandAreKeptNewestFirst) {
  cache::History history(uint64_t{64} << 20);
  for (uint32_t i = 0; i < 5000; ++i) history.Add(PastOf("r" + std::to_string(i), 10, 5), {}, i);
  const block::PastAnswers all = history.Find({.request_id = "", .last = 10000}, 5000);
  EXPECT_EQ(all.remembered, 4096u);
  ASSERT_EQ(all.answers.size(), 4096u);
  EXPECT_EQ(all.answers.front().request_id, "r4999");
  EXPECT_EQ(all.answers.back().request_id, "r904");
  EXPECT_DOUBLE_EQ(all.answers.back().age_s, (5000 - 904) * 1e-6);
  EXPECT_EQ(history.Find({.request_id = "r903"}, 0).answers.size(), 0u);
  EXPECT_EQ(history.Find({.request_id = "r904"}, 0).answers.size(), 1u);
}

TEST(HistoryTest, BytesBoundItToo) {
  cache::History history(100'000);
  for (int i = 0; i < 5000; ++i) history.Add(PastOf(std::string(256, 'x'), 10, 5), {}, i);
  EXPECT_LE(history.MemoryBytes(), 100'000u);
  EXPECT_GT(history.MemoryBytes(), 90'000u);
  EXPECT_LT(history.Find({}, 0).remembered, 300u);
}

TEST(HistoryTest, BelowAsksForTheShareThatWasRestorable) {
  cache::History history(uint64_t{1} << 20);
  history.Add(PastOf("half", 100, 50), {}, 0);
  history.Add(PastOf("little", 100, 49), {}, 0);
  history.Add(PastOf("none", 100, 0), {}, 0);
  const block::PastAnswers below = history.Find({.request_id = "", .last = 9, .below = 0.5}, 0);
  ASSERT_EQ(below.answers.size(), 2u);
  EXPECT_EQ(below.answers[0].request_id, "none");
  EXPECT_EQ(below.answers[1].request_id, "little");
}

TEST(HistoryTest, WhatTheWorkerMeasuredIsAddedUnlessForgotten) {
  cache::History history(uint64_t{1} << 20);
  const uint64_t first = history.Add(PastOf("a", 100, 50), {}, 0);
  history.Learn(first, 48, 1200, 9000);
  EXPECT_EQ(history.Find({}, 0).answers[0].used_tokens, 48u);
  EXPECT_EQ(history.Find({}, 0).answers[0].load_us, 1200u);
  for (int i = 0; i < 4096; ++i) history.Add(PastOf("b", 1, 1), {}, 0);
  history.Learn(first, 1, 1, 1);
  for (const auto& answer : history.Find({.request_id = "", .last = 5000}, 0).answers) {
    EXPECT_EQ(answer.used_tokens, 0u);
  }
}

class WhyTest : public CacheTest {};

TEST_F(WhyTest, AnswersAreRememberedByTheWorkersIdOrOneMadeUp) {
  Open(RamOnly());
  const block::SpaceIdentity identity = SmallIdentity();
  const block::SpaceHandle space = OpenSpace(identity);
  const Tokens stored = RandomTokens(1, 64);
  ASSERT_TRUE(Store(identity, space, stored).ok());
  cache::Request request;
  request.space = space;
  request.tokens = Tokens(stored.begin(), stored.begin() + 41);
  request.tokens.resize(80, 77777);
  request.request_id = "chat-17";
  const auto acquired = cache_->Acquire(session_, request, In(10000));
  ASSERT_TRUE(acquired.ok());
  ASSERT_TRUE(
      cache_->Release(session_, {.lease = acquired->lease, .used_tokens = 41, .load_us = 7}).ok());
  request.request_id.clear();
  EXPECT_EQ(cache_->Acquire(session_, request, In(10000))->request_id, "acquire-1");
  const block::PastAnswers past = cache_->Why({.request_id = "chat-17"});
  ASSERT_EQ(past.answers.size(), 1u);
  EXPECT_EQ(past.remembered, 2u);
  EXPECT_EQ(past.answers[0].worker, "test");
  EXPECT_EQ(past.answers[0].requested_tokens, 80u);
  EXPECT_EQ(past.answers[0].match.matched_tokens, 41u);
  EXPECT_EQ(past.answers[0].match.ended_by, block::EndReason::kDiverged);
  EXPECT_EQ(past.answers[0].match.diverged_sequences, 1u);
  EXPECT_EQ(past.answers[0].used_tokens, 41u);
  EXPECT_EQ(past.answers[0].load_us, 7u);
  EXPECT_EQ(cache_->Why({.request_id = "acquire-1"}).answers.size(), 1u);
}

}  // namespace
}  // namespace prefixd::testing
