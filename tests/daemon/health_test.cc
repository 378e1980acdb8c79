// Health and reflection. Debian packages no stubs for reflection: messages by hand.
#include <future>

#include "grpcpp/generic/generic_stub.h"

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/daemon/program_fixture.h"

namespace prefixd::testing {
namespace {

using HealthTest = DaemonTest;
// This program links the descriptors that it asks for: only prefixd itself shows what it serves.
using ReflectionTest = ProgramTest;

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

using grpc::health::v1::HealthCheckResponse;

// As grpc_health_probe asks.
HealthCheckResponse::ServingStatus StatusOf(const std::string& target, const std::string& service) {
  const auto stub = grpc::health::v1::Health::NewStub(Worker::Channel(target));
  Context context;
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = stub->Check(&context, request, &response);
  EXPECT_TRUE(status.ok()) << service << ": " << status.error_message();
  return response.status();
}

constexpr const char* kCache = "prefixd.v1.PrefixCache";
constexpr const char* kAdmin = "prefixd.v1.Admin";

TEST_F(HealthTest, ServingUntilTheDrain) {
  for (const char* const service : {"", kCache, kAdmin}) {
    EXPECT_EQ(StatusOf(target(), service), HealthCheckResponse::SERVING) << service;
  }
  server_->BeginDrain(1000);
  server_->SayLoaded();
  for (const char* const service : {"", kCache, kAdmin}) {
    EXPECT_EQ(StatusOf(target(), service), HealthCheckResponse::NOT_SERVING) << service;
  }
  Serve();
}

TEST_F(HealthTest, TheCacheIsNotServingUntilItsIndexIsWhole) {
  v1::CommitReply commit;
  ASSERT_TRUE(worker_->Store(identity_, space_, SomeTokens(1, 40), &commit).ok());
  ASSERT_EQ(cache_->Flush(base::Deadline::max()).dirty_bytes, 0u);
  server_.reset();
  cache_.reset();
  std::promise<void> go;
  cache::Options options = CacheOptions();
  options.open_within = std::chrono::milliseconds(0);
  options.log = [held = go.get_future().share()](cache::LogLevel, const std::string& line) {
    if (line.starts_with("index: loading from")) held.wait();
  };
  cache_ = cache::Cache::Open(options).value();
  Serve();
  EXPECT_EQ(StatusOf(target(), ""), HealthCheckResponse::SERVING);
  EXPECT_EQ(StatusOf(target(), kAdmin), HealthCheckResponse::SERVING);
  EXPECT_EQ(StatusOf(target(), kCache), HealthCheckResponse::NOT_SERVING);
  go.set_value();
  ASSERT_TRUE(cache_->WaitLoaded(base::Deadline::max()));
  server_->SayLoaded();
  EXPECT_EQ(StatusOf(target(), kCache), HealthCheckResponse::SERVING);
}

// ServerReflectionRequest { list_services = 7 }, { file_containing_symbol = 4 }
TEST_F(ReflectionTest, DescribesWhateverItNames) {
  Start(Args());
  ASSERT_TRUE(Serves()) << Log();
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string names = Ask(target(), method, std::string("\x3a\x00", 2));
  for (const std::string service : {kCache, kAdmin, "grpc.health.v1.Health"}) {
    EXPECT_THAT(names, HasSubstr(service));
    const std::string file =
        Ask(target(), method, std::string("\x22") + static_cast<char>(service.size()) + service);
    EXPECT_THAT(file, HasSubstr("proto3")) << service << " has no descriptor: " << file;
  }
}

}  // namespace
}  // namespace prefixd::testing
