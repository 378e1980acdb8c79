// Direct calls of the library: against a peer that this test plays, and against a daemon.
#include "client/cpp/direct_channel.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "os/messages.h"
#include "os/sockets.h"
#include "prefixd/v1/prefix_cache.pb.h"
#include "tests/client/daemon.h"

namespace prefixd {
namespace {

using client::DirectChannel;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using wire::DirectVerb;

// The daemon's end of a channel: the test reads calls and writes answers.
class DirectChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, os::MessageSocketType(), 0, ends), 0);
    daemon_ = base::Descriptor(ends[0]);
    channel_.emplace(base::Descriptor(ends[1]));
    request_.set_session(7);
  }
  // Answers may wait in the socket before the call is made.
  void Answer(uint64_t call, uint32_t code, const std::string& payload, size_t piece = 1 << 16) {
    const wire::DirectAnswer head{
        .call = call, .code = code, .bytes = static_cast<uint32_t>(payload.size())};
    const std::string whole = std::string(wire::BytesOf(head)) + payload;
    for (size_t at = 0; at < whole.size(); at += piece) {
      ASSERT_TRUE(os::SendMessage(daemon_.get(), whole.substr(at, piece), {}));
    }
  }
  std::string Epoch(uint64_t epoch) const {
    v1::Ack ack;
    ack.set_epoch(epoch);
    return ack.SerializeAsString();
  }
  std::optional<absl::Status> Call(milliseconds patience = milliseconds(20'000)) {
    return channel_->Call(DirectVerb::kRelease, request_, steady_clock::now() + patience, &reply_);
  }
  wire::DirectRequest NextCall() {
    os::MessageReader reader(wire::kMaxDirectMessageBytes, 0);
    wire::DirectRequest head;
    EXPECT_EQ(reader.Read(daemon_.get()), os::MessageReader::Got::kMessage);
    std::string_view message = reader.bytes();
    EXPECT_TRUE(wire::TakeHead(&message, &head));
    return head;
  }

  base::Descriptor daemon_;
  std::optional<DirectChannel> channel_;
  v1::ReleaseRequest request_;
  v1::Ack reply_;
};

TEST_F(DirectChannelTest, ACallSendsItsVerbAndGivesTheAnswer) {
  Answer(1, 0, Epoch(5));
  EXPECT_EQ(Call(), absl::OkStatus());
  EXPECT_EQ(reply_.epoch(), 5u);
  const wire::DirectRequest sent = NextCall();
  EXPECT_EQ(sent.verb, DirectVerb::kRelease);
  EXPECT_EQ(sent.call, 1u);
  EXPECT_EQ(sent.heard, 0u);
  EXPECT_GT(sent.patience_ms, 10'000u);
  Answer(2, 0, Epoch(6));
  EXPECT_EQ(Call(), absl::OkStatus());
  EXPECT_EQ(NextCall().heard, 1u);
}

TEST_F(DirectChannelTest, AnErrorIsTheDaemons) {
  Answer(1, static_cast<uint32_t>(absl::StatusCode::kNotFound), "no such lease");
  EXPECT_EQ(Call(), absl::NotFoundError("no such lease"));
}

TEST_F(DirectChannelTest, AnAnswerInPiecesIsPutTogether) {
  Answer(1, static_cast<uint32_t>(absl::StatusCode::kNotFound), std::string(1000, 'w'), 100);
  EXPECT_EQ(Call(), absl::NotFoundError(std::string(1000, 'w')));
}

TEST_F(DirectChannelTest, ALateAnswerIsNotTheNextCalls) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(*Call(milliseconds(1))));
  EXPECT_EQ(Call(), std::nullopt) << "a call while the answer is late goes by gRPC";
  Answer(1, 0, Epoch(1));
  Answer(2, 0, Epoch(2));
  EXPECT_EQ(Call(), absl::OkStatus());
  EXPECT_EQ(reply_.epoch(), 2u);
  NextCall();
  EXPECT_EQ(NextCall().heard, 0u) << "the late answer was not used";
}

TEST_F(DirectChannelTest, WhatTheDaemonWantsByGrpcGoesByGrpc) {
  Answer(1, wire::kCallByGrpc, "");
  EXPECT_EQ(Call(), std::nullopt);
  Answer(2, 0, Epoch(2));
  EXPECT_EQ(Call(), absl::OkStatus()) << "and the next call is a direct one again";
}

TEST_F(DirectChannelTest, ALongRequestGoesByGrpc) {
  for (int i = 0; i < 20'000; ++i) request_.add_release()->set_lease(1);
  EXPECT_EQ(Call(), std::nullopt);
  request_.clear_release();
  Answer(1, 0, Epoch(1));
  EXPECT_EQ(Call(), absl::OkStatus());
}

TEST_F(DirectChannelTest, ADaemonThatHangsUpMayHaveDoneTheLastCallAndNoFurther) {
  std::thread daemon([this] {
    pollfd polled{.fd = daemon_.get(), .events = POLLIN, .revents = 0};
    poll(&polled, 1, 20'000);
    daemon_ = base::Descriptor();
  });
  EXPECT_TRUE(absl::IsUnavailable(*Call()));
  daemon.join();
  EXPECT_EQ(Call(), std::nullopt);
}

// Its descriptor's number may be another file's there.
TEST_F(DirectChannelTest, T5AChildMakesNoCallAndClosesNothing) {
  Answer(1, 0, Epoch(1));
  const int before = dup(daemon_.get());
  close(before);  // the lowest free number, in the child too
  const pid_t child = fork();
  if (child == 0) {
    const bool called = Call().has_value();
    channel_.reset();
    const int after = dup(daemon_.get());
    _exit(!called && after == before ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Call(), absl::OkStatus());
}

TEST_F(DirectChannelTest, AnAnswerToAnotherCallBreaksTheChannel) {
  Answer(3, 0, Epoch(1));
  EXPECT_TRUE(absl::IsUnavailable(*Call()));
  EXPECT_EQ(Call(), std::nullopt);
}

class DirectCallsOfClientTest : public testing::Test {
 protected:
  void SetUp() override {
    daemon_.emplace(directory_.socket(), DaemonOptions{.arena = arena_.path()});
    if (!daemon_->cache().arena().shared) GTEST_SKIP() << "no tmpfs to share memory in";
    client_.emplace(ClientOptions{.address = directory_.address(), .staging_bytes = 1 << 20});
    space_ = client_->OpenSpace(spec_);
    ASSERT_TRUE(space_.ok()) << space_.status.message;
  }
  uint64_t Count(const std::string& name) {
    for (const block::NamedCount& count : daemon_->cache().GetStats().counters) {
      if (count.name == name) return count.value;
    }
    return 0;
  }
  void Store(const std::vector<uint32_t>& tokens) {
    Sequence seq = space_.value().Begin(tokens);
    AppendTokens(seq, spec_, tokens, seq.WaitAll(), static_cast<uint32_t>(tokens.size()));
    ASSERT_TRUE(seq.Commit({.sequence_end = true}).ok());
  }

  TempDirectory directory_;
  ArenaPath arena_;
  const SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, 4, 32, Dtype::kBf16));
  std::optional<Daemon> daemon_;
  std::optional<Client> client_;
  Result<Space> space_;
};

TEST_F(DirectCallsOfClientTest, HitsAndStoresAreDirectCalls) {
  const std::vector<uint32_t> tokens = Tokens(300, 1);
  Store(tokens);
  const uint64_t stored = Count("calls.direct");
  EXPECT_GT(stored, 1u);
  EXPECT_EQ(space_.value().Acquire(tokens).WaitAll(), 300u);
  EXPECT_GT(Count("calls.direct"), stored);
  EXPECT_EQ(Count("rpc.acquire") + Count("rpc.reserve") + Count("rpc.commit") +
                Count("rpc.release") + Count("rpc.abandon"),
            Count("calls.direct"));
}

TEST_F(DirectCallsOfClientTest, ThreadsThatCallAtOnceAllGetTheirAnswers) {
  constexpr int kThreads = 8, kCalls = 200;
  for (uint32_t seed = 0; seed < kThreads; ++seed) Store(Tokens(100 + seed, seed));
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < kThreads; ++seed) {
    threads.emplace_back([&, seed] {
      for (int i = 0; i < kCalls; ++i) {
        right += space_.value().Acquire(Tokens(100 + seed, seed)).WaitAll() == 100 + seed ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kThreads * kCalls);
  EXPECT_GE(Count("rpc.acquire"), uint64_t{kThreads * kCalls});
}

// The thread that sends releases looks for a while after one, then sleeps.
TEST_F(DirectCallsOfClientTest, AReleaseAfterAPauseIsSentWithoutAnotherCall) {
  Store(Tokens(300, 1));
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  const auto none_held = [&] {
    while (daemon_->cache().GetStats().leases > 0 && steady_clock::now() < end) {
      std::this_thread::yield();
    }
    return daemon_->cache().GetStats().leases == 0;
  };
  EXPECT_TRUE(none_held());
  {
    const Lease lease = space_.value().Acquire(Tokens(300, 1));
    EXPECT_EQ(daemon_->cache().GetStats().leases, 1u);
    std::this_thread::sleep_for(milliseconds(300));  // until it sleeps
  }
  EXPECT_TRUE(none_held());
}

TEST_F(DirectCallsOfClientTest, ATracedThreadsCallsGoByGrpc) {
  Store(Tokens(300, 1));
  while (daemon_->cache().GetStats().leases > 0) std::this_thread::yield();  // releases are direct
  const uint64_t before = Count("calls.direct"), lookups = Count("rpc.acquire");
  ASSERT_TRUE(SetTrace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").ok());
  const Lease lease = space_.value().Acquire(Tokens(300, 1));
  EXPECT_TRUE(SetTrace("").ok());
  EXPECT_EQ(Count("rpc.acquire"), lookups + 1);
  EXPECT_EQ(Count("calls.direct"), before);
}

}  // namespace
}  // namespace prefixd
