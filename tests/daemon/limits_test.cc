// SetBudgets and SetSpaceLimits over a real socket.
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using LimitsRpcTest = DaemonTest;

TEST_F(LimitsRpcTest, LimitsAreSetListedAndRemembered) {
  v1::SetSpaceLimitsRequest request;
  const block::SpaceId id = block::IdOf(identity_);
  request.set_space_id(id.data(), id.size());
  request.mutable_limits()->set_ram_floor_bytes(4096);
  request.mutable_limits()->set_ttl_ms(3'600'000);
  v1::SetSpaceLimitsReply reply;
  Context context, none;
  const grpc::Status status = worker_->admin->SetSpaceLimits(&context, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(reply.remembered());
  ASSERT_EQ(worker_->Stats().spaces_size(), 1);
  EXPECT_EQ(worker_->Stats().spaces(0).limits().ram_floor_bytes(), 4096u);
  EXPECT_EQ(worker_->Stats().spaces(0).limits().ttl_ms(), 3'600'000u);
  request.clear_space_id();
  EXPECT_EQ(worker_->admin->SetSpaceLimits(&none, request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(LimitsRpcTest, BudgetsChangeAndAreShown) {
  v1::SetBudgetsRequest request;
  v1::SetBudgetsReply reply;
  Context asking, changing, refusing;
  ASSERT_TRUE(worker_->admin->SetBudgets(&asking, request, &reply).ok());
  EXPECT_EQ(reply.ram_budget_bytes(), uint64_t{64} << 20);
  request.set_ssd_bytes(uint64_t{512} << 20);
  ASSERT_TRUE(worker_->admin->SetBudgets(&changing, request, &reply).ok());
  EXPECT_EQ(worker_->Stats().ssd_budget_bytes(), uint64_t{512} << 20);
  request.set_ssd_bytes(1);
  const grpc::Status refused = worker_->admin->SetBudgets(&refusing, request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("two segments"));
}

}  // namespace
}  // namespace prefixd::testing
