// Pin, Unpin and ListPins over a real socket.
#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

class PinRpcTest : public DaemonTest {
 protected:
  v1::PinRequest PinOf(const Tokens& tokens, uint64_t ttl_ms) {
    v1::PinRequest request;
    request.set_session(worker_->session);
    request.set_ttl_ms(ttl_ms);
    wire::ToProto({space_}, {tokens, {}}, request.mutable_sequence());
    return request;
  }
  v1::ListPinsReply List() {
    Context context;
    v1::ListPinsReply reply;
    EXPECT_TRUE(worker_->admin->ListPins(&context, {}, &reply).ok());
    return reply;
  }
};

TEST_F(PinRpcTest, APinIsListedCountedAndEnded) {
  const Tokens tokens = SomeTokens(1, 40);
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, tokens, &stored).ok());
  Tokens longer = tokens;
  longer.push_back(7);
  v1::PinReply pinned;
  Context pinning;
  ASSERT_TRUE(worker_->cache->Pin(&pinning, PinOf(longer, 3'600'000), &pinned).ok());
  EXPECT_EQ(pinned.epoch(), worker_->epoch);
  EXPECT_EQ(pinned.pinned_tokens(), 40u);
  EXPECT_EQ(pinned.answer().match_ended_by(), v1::END_REASON_NEVER_STORED);
  const v1::ListPinsReply list = List();
  ASSERT_EQ(list.pins_size(), 1);
  EXPECT_EQ(list.pins(0).pin(), pinned.pin());
  EXPECT_EQ(list.pins(0).worker(), "test");
  EXPECT_EQ(list.pins(0).bytes(), pinned.bytes());
  EXPECT_GT(list.pins(0).left_s(), 3500);
  EXPECT_EQ(worker_->Stats().pins(), 1u);
  EXPECT_EQ(worker_->Stats().pinned_bytes(), pinned.bytes());
  EXPECT_EQ(worker_->Stats().leases(), 0u);
  worker_->Detach();
  worker_->Attach();
  worker_->Open(identity_);
  v1::UnpinRequest request;
  request.set_pin(pinned.pin());
  v1::UnpinReply unpinned;
  Context first, second;
  ASSERT_TRUE(worker_->cache->Unpin(&first, request, &unpinned).ok());
  EXPECT_EQ(unpinned.bytes(), pinned.bytes());
  EXPECT_EQ(worker_->cache->Unpin(&second, request, &unpinned).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(List().pins().empty());
}

TEST_F(PinRpcTest, BadPinsAreRefusedWithTheirReason) {
  v1::PinReply reply;
  Context no_tokens, too_long, no_session;
  EXPECT_EQ(worker_->cache->Pin(&no_tokens, PinOf({}, 0), &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  const grpc::Status long_time =
      worker_->cache->Pin(&too_long, PinOf(SomeTokens(1, 4), ~uint64_t{0}), &reply);
  EXPECT_EQ(long_time.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(long_time.error_message(), ::testing::HasSubstr("a hundred years"));
  v1::PinRequest unknown = PinOf(SomeTokens(1, 4), 0);
  unknown.set_session(12345);
  EXPECT_EQ(worker_->cache->Pin(&no_session, unknown, &reply).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

}  // namespace
}  // namespace prefixd::testing
