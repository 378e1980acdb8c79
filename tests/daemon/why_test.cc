// Why over a real socket.
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using WhyRpcTest = DaemonTest;

TEST_F(WhyRpcTest, AnAnswerIsExplainedAfterwards) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &stored).ok());
  Tokens other(SomeTokens(1, 40));
  other[23] = 77777;
  v1::AcquireRequest request = worker_->AcquireOf(space_, other);
  request.mutable_items(0)->set_request_id("chat-17");
  v1::AcquireReply acquired;
  Context asking;
  ASSERT_TRUE(worker_->cache->Acquire(&asking, request, &acquired).ok());
  v1::WhyRequest why;
  why.set_below(0.6);
  v1::WhyReply reply;
  Context context;
  ASSERT_TRUE(worker_->admin->Why(&context, why, &reply).ok());
  ASSERT_EQ(reply.answers_size(), 1);
  EXPECT_EQ(reply.answers(0).request_id(), "chat-17");
  EXPECT_EQ(reply.answers(0).matched_tokens(), 23u);
  EXPECT_EQ(reply.answers(0).requested_tokens(), 40u);
  EXPECT_EQ(reply.answers(0).match_ended_by(), v1::END_REASON_DIVERGED);
  EXPECT_EQ(reply.answers(0).diverged_sequences(), 1u);
}

TEST_F(WhyRpcTest, AShareThatIsNoneIsRefused) {
  v1::WhyRequest why;
  why.set_below(1.5);
  v1::WhyReply reply;
  Context context;
  const grpc::Status status = worker_->admin->Why(&context, why, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("why: below is 1.5"));
}

TEST_F(WhyRpcTest, WhatRequestsHadInCommonIsListedAsATree) {
  const uint32_t block = identity_.block_tokens;
  const Tokens common = SomeTokens(1, 2 * block);
  for (const uint32_t seed : {2u, 3u}) {
    Tokens tokens = common;
    const Tokens more = SomeTokens(seed, block);
    tokens.insert(tokens.end(), more.begin(), more.end());
    v1::CommitReply stored;
    ASSERT_TRUE(worker_->Store(identity_, space_, tokens, &stored).ok());
    v1::AcquireReply acquired;
    ASSERT_TRUE(worker_->Acquire(space_, tokens, &acquired).ok());
  }
  v1::ListPrefixesRequest request;
  v1::ListPrefixesReply reply;
  Context context;
  ASSERT_TRUE(worker_->admin->ListPrefixes(&context, request, &reply).ok());
  ASSERT_EQ(reply.prefixes_size(), 3);
  EXPECT_EQ(reply.requests(), 2u);
  EXPECT_EQ(reply.prefixes(0).to_token(), 2 * block);
  EXPECT_EQ(reply.prefixes(0).requests(), 2u);
  EXPECT_EQ(reply.prefixes(0).space_id().size(), 32u);
  EXPECT_EQ(reply.prefixes(0).block_hash().size(), 16u);
  EXPECT_GT(reply.prefixes(0).ram_bytes(), 0u);
  for (const int i : {1, 2}) {
    EXPECT_EQ(reply.prefixes(i).parent(), 1u);
    EXPECT_EQ(reply.prefixes(i).from_token(), 2 * block);
    EXPECT_EQ(reply.prefixes(i).to_token(), 3 * block);
    EXPECT_EQ(reply.prefixes(i).requests(), 1u);
  }
  request.set_most(1001);
  Context again;
  const grpc::Status refused = worker_->admin->ListPrefixes(&again, request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "list_prefixes: most is 1001, the limit is 1000");
}

}  // namespace
}  // namespace prefixd::testing
