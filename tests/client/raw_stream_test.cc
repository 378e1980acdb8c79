// A stream of bytes: its thread stays where it told the daemon that it is, for as long as it lasts.
#include "client/cpp/raw_stream.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>

#include "tests/client/support.h"
#include "tests/support/cpus.h"
#include "wire/limits.h"

namespace prefixd::client {
namespace {

constexpr char kGive[] = "/give", kTake[] = "/take";

grpc::ByteBuffer MessageOf(uint64_t bytes) {
  const grpc::Slice slice(std::string(bytes, 'p'));
  return {&slice, 1};
}

// Answers every message: with a large one where it gives, with a small one where it takes.
class Peer final : public grpc::CallbackGenericService {
 public:
  std::string named_cpu() const { return named_cpu_; }  // by the last caller

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(bool gives) : answer_(MessageOf(gives ? wire::kMaxPieceBytes : 1)) {
      StartRead(&message_);
    }
    void OnReadDone(bool ok) override {
      if (ok) return StartWrite(&answer_);
      Finish(grpc::Status::OK);
    }
    void OnWriteDone(bool) override { StartRead(&message_); }
    void OnDone() override { delete this; }

   private:
    grpc::ByteBuffer message_;
    const grpc::ByteBuffer answer_;
  };
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override {
    const auto named = context->client_metadata().find(wire::kCpuKey);
    if (named != context->client_metadata().end())
      named_cpu_.assign(named->second.data(), named->second.size());
    return new Reactor(context->method() == kGive);
  }
  std::string named_cpu_;
};

class RawStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddListeningPort(directory_.address(), grpc::InsecureServerCredentials());
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(&peer_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  static PageChannel ChannelTo(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    return {address,
            grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)};
  }
  // Messages of a megabyte, to the peer or from it.
  static void Move(RawStream* stream, const std::string& method, int pieces) {
    for (int i = 0; i < pieces; ++i) {
      ASSERT_TRUE(stream->Write(MessageOf(method == kTake ? wire::kMaxPieceBytes : 1)));
      grpc::ByteBuffer answer;
      ASSERT_TRUE(stream->Read(&answer));
      EXPECT_EQ(answer.Length(), method == kGive ? wire::kMaxPieceBytes : 1);
    }
  }

  const cpu_set_t home_ = CpusOf();
  TempDirectory directory_;
  Peer peer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RawStreamTest, ItsThreadStaysOnTheCpuThatItNamedOnceItIsLong) {
  if (wire::CallbackThreads() != 2) GTEST_SKIP() << "this host has many cores";
  for (const char* method : {kGive, kTake}) {
    {
      grpc::ClientContext context;
      RawStream stream(ChannelTo(directory_.address()), method, &context);
      Move(&stream, method, 3);
      EXPECT_TRUE(CpusOf() == home_) << method << ": short as yet";
      Move(&stream, method, 2);
      cpu_set_t there = wire::CpusBeside(std::stoi(peer_.named_cpu()));
      CPU_AND(&there, &there, &home_);
      EXPECT_TRUE(CpusOf() == there) << method;
      EXPECT_TRUE(stream.WritesDone());
      grpc::ByteBuffer none;
      EXPECT_FALSE(stream.Read(&none));
      EXPECT_TRUE(stream.Finish().ok());
    }
    EXPECT_TRUE(CpusOf() == home_) << method;
  }
}

TEST_F(RawStreamTest, ToAnotherHostItNamesNoneAndRunsAnywhere) {
  grpc::ClientContext context;
  RawStream stream(ChannelTo("127.0.0.1:" + std::to_string(port_)), kGive, &context);
  Move(&stream, kGive, 5);
  EXPECT_EQ(peer_.named_cpu(), "");
  EXPECT_TRUE(CpusOf() == home_);
}

}  // namespace
}  // namespace prefixd::client
