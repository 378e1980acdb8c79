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

}  // namespace
}  // namespace prefixd::testing
