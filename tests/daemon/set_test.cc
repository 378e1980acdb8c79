// Sets: several spaces in one Acquire with one length, over a real socket.
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;

class SetTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    draft_identity_.model = "draft";
    draft_identity_.role = block::Role::kDraft;
    draft_identity_.block_tokens = 32;
    v1::OpenSpaceReply reply;
    ASSERT_TRUE(worker_->OpenSpace(draft_identity_, &reply).ok());
    draft_ = reply.space();
    v1::CommitReply stored;
    ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
    ASSERT_TRUE(worker_->Store(draft_identity_, draft_, Head(33), &stored).ok());
  }
  static Tokens Head(size_t count) {
    Tokens tokens = SomeTokens(1, 40);
    tokens.resize(count);
    return tokens;
  }
  // The target's tokens, and the draft beside it without any.
  v1::AcquireRequest Both(const Tokens& tokens) const {
    v1::AcquireRequest request = worker_->AcquireOf(space_, tokens);
    request.mutable_items(0)->set_set(7);
    v1::AcquireRequest::Item* draft = request.add_items();
    draft->mutable_sequence()->set_space(draft_);
    draft->set_set(7);
    return request;
  }
  grpc::Status Acquire(const v1::AcquireRequest& request, v1::AcquireReply* reply) {
    Context context;
    return worker_->cache->Acquire(&context, request, reply);
  }

  block::SpaceIdentity draft_identity_ = SmallIdentity();
  uint64_t draft_ = 0;
};

TEST_F(SetTest, NeighboursOfOneNumberHaveOneLengthAndOthersTheirOwn) {
  v1::AcquireRequest request = Both(SomeTokens(1, 40));
  *request.add_items() = worker_->AcquireOf(space_, SomeTokens(1, 40)).items(0);
  v1::AcquireReply reply;
  ASSERT_TRUE(Acquire(request, &reply).ok());
  ASSERT_EQ(reply.answers_size(), 3);
  EXPECT_EQ(reply.answers(0).restorable_tokens(), 33u);
  EXPECT_EQ(reply.answers(1).restorable_tokens(), 33u);
  EXPECT_EQ(reply.answers(2).restorable_tokens(), 40u);
  ASSERT_EQ(reply.answers(0).shortened_by_size(), 1);
  EXPECT_EQ(reply.answers(0).shortened_by(0).reason(), v1::SHORTEN_REASON_COMMON_LENGTH);
  EXPECT_EQ(reply.answers(0).shortened_by(0).tokens_lost(), 7u);
  EXPECT_EQ(reply.answers(1).shortened_by_size(), 0);
  EXPECT_EQ(worker_->Stats().leases(), 3u);
  for (const v1::Answer& answer : reply.answers()) {
    Pages pages;
    std::vector<v1::GroupReady> ready;
    ASSERT_TRUE(worker_->Fetch(answer.lease(), &pages, &ready).ok());
    ASSERT_FALSE(ready.empty());
    EXPECT_EQ(ready.back().usable_tokens(), answer.restorable_tokens());
  }
}

TEST_F(SetTest, AMatchAndAHintSayTheSame) {
  v1::AcquireReply match;
  Context context;
  ASSERT_TRUE(worker_->cache->Match(&context, Both(SomeTokens(1, 40)), &match).ok());
  ASSERT_EQ(match.answers_size(), 2);
  EXPECT_EQ(match.answers(0).restorable_tokens(), 33u);
  EXPECT_EQ(match.answers(1).restorable_tokens(), 33u);
  v1::PrefetchReply hint;
  Context other;
  ASSERT_TRUE(worker_->cache->Prefetch(&other, Both(SomeTokens(1, 40)), &hint).ok());
  ASSERT_EQ(hint.hints_size(), 2);
  EXPECT_EQ(hint.hints(0).restorable_tokens(), 33u);
  EXPECT_EQ(hint.hints(1).tokens(), 33u);
  EXPECT_EQ(worker_->Stats().leases(), 0u);
}

TEST_F(SetTest, EachMemberMayAskForItsPlan) {
  v1::AcquireRequest request = Both(SomeTokens(1, 100));
  for (v1::AcquireRequest::Item& item : *request.mutable_items()) item.set_reserve(true);
  v1::AcquireReply reply;
  ASSERT_TRUE(Acquire(request, &reply).ok());
  EXPECT_EQ(reply.answers(0).reserved().blocks_size(), 7);
  EXPECT_EQ(reply.answers(1).reserved().blocks_size(), 4);
  EXPECT_EQ(worker_->Stats().reservations(), 2u);
}

TEST_F(SetTest, AMemberThatFailsLeavesNothingHeldOfTheOthers) {
  v1::AcquireRequest request = worker_->AcquireOf(space_, SomeTokens(1, 40));
  request.mutable_items(0)->set_reserve(true);
  const v1::AcquireRequest both = Both(SomeTokens(1, 40));
  for (const v1::AcquireRequest::Item& item : both.items()) *request.add_items() = item;
  request.mutable_items(2)->mutable_sequence()->set_space(4711);
  v1::AcquireReply reply;
  EXPECT_EQ(Acquire(request, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
  const v1::GetStatsReply stats = worker_->Stats();
  EXPECT_EQ(stats.leases(), 0u);
  EXPECT_EQ(stats.leased_bytes(), 0u);
  EXPECT_EQ(stats.reservations(), 0u);
}

TEST_F(SetTest, WhatIsNoSetIsRefusedByName) {
  const auto refused = [&](const v1::AcquireRequest& request) {
    v1::AcquireReply reply;
    const grpc::Status status = Acquire(request, &reply);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  v1::AcquireRequest apart = Both(SomeTokens(1, 40));
  apart.mutable_items(1)->set_set(8);
  EXPECT_THAT(refused(apart), HasSubstr("0 tokens"));
  v1::AcquireRequest first = Both({});
  EXPECT_THAT(refused(first), HasSubstr("0 tokens"));
  EXPECT_EQ(worker_->Stats().leases(), 0u);
}

}  // namespace
}  // namespace prefixd::testing
