// Health and reflection, which Debian packages no stubs for: messages by hand.
#include "grpcpp/generic/generic_stub.h"

#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

using HealthTest = DaemonTest;

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices)
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// One message to a method, its first reply back.
std::string Ask(const std::string& target, const std::string& method, const std::string& message) {
  grpc::GenericStub stub(Worker::Channel(target));
  Context context;
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  EXPECT_TRUE(next());
  grpc::Slice slice(message);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
  EXPECT_TRUE(next());
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  EXPECT_TRUE(next());
  grpc::Status status;
  call->Finish(&status, nullptr);
  EXPECT_TRUE(next());
  EXPECT_TRUE(status.ok()) << status.error_message();
  return Text(reply);
}

// HealthCheckResponse { status = 1 } : 1 SERVING, 2 NOT_SERVING
TEST_F(HealthTest, ServingUntilTheDrain) {
  EXPECT_EQ(Ask(target(), "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
  server_->BeginDrain(1000);
  EXPECT_EQ(Ask(target(), "/grpc.health.v1.Health/Check", ""), std::string("\x08\x02"));
  Serve();
}

// ServerReflectionRequest { list_services = 7 }
TEST_F(HealthTest, ReflectionNamesBothServices) {
  const std::string reply =
      Ask(target(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
          std::string("\x3a\x00", 2));
  EXPECT_THAT(reply, ::testing::HasSubstr("prefixd.v1.PrefixCache"));
  EXPECT_THAT(reply, ::testing::HasSubstr("prefixd.v1.Admin"));
}

}  // namespace
}  // namespace prefixd::testing
