// Direct calls over the real side socket: they do what they do by gRPC, whatever a peer does.
#include "daemon/direct_calls.h"

#include <optional>
#include <string>

#include "tests/daemon/fd_client.h"
#include "tests/daemon/fixture.h"
#include "wire/direct.h"

namespace prefixd::testing {
namespace {

using wire::DirectVerb;

struct DirectReply {
  bool hung_up = false;
  wire::DirectAnswer head;
  std::string payload;
  int messages = 0;
};

// A worker that has its files and keeps the connection over which they came.
class DirectPeer {
 public:
  DirectPeer(const std::string& fd_socket, const v1::Attached& attached)
      : fd_(ConnectFdSocket(fd_socket)) {
    EXPECT_TRUE(os::SendMessage(fd_.get(), attached.key(), {}));
    EXPECT_EQ(ReceiveFiles(fd_).text, attached.key());
  }

  bool SendRaw(const std::string& message) { return os::SendMessage(fd_.get(), message, {}); }
  bool Send(DirectVerb verb, const std::string& request, uint64_t heard) {
    const wire::DirectRequest head{
        .call = call_ + 1, .heard = heard, .verb = verb, .patience_ms = 20'000};
    if (!SendRaw(std::string(wire::BytesOf(head)) + request)) return false;
    ++call_;
    return true;
  }
  DirectReply Receive() {
    DirectReply reply;
    os::MessageReader reader(wire::kMaxDirectMessageBytes, 0);
    do {
      os::MessageReader::Got got = os::MessageReader::Got::kMore;
      pollfd polled{.fd = fd_.get(), .events = POLLIN, .revents = 0};
      while (got == os::MessageReader::Got::kMore && ::poll(&polled, 1, 20'000) > 0) {
        got = reader.Read(fd_.get());
        // Said once, before the answers that are there, if the daemon left calls unread.
        if (got == os::MessageReader::Got::kEnd && errno == ECONNRESET)
          got = reader.Read(fd_.get());
      }
      EXPECT_NE(got, os::MessageReader::Got::kMore) << "neither an answer nor an end";
      reply.hung_up = got == os::MessageReader::Got::kEnd;
      if (got != os::MessageReader::Got::kMessage) return reply;
      std::string_view message = reader.bytes();
      if (++reply.messages == 1) {
        EXPECT_TRUE(wire::TakeHead(&message, &reply.head));
      }
      reply.payload += message;
      reader.Next();
    } while (reply.payload.size() < reply.head.bytes);
    return reply;
  }
  // Says that it heard all answers so far, unless told otherwise.
  DirectReply Call(DirectVerb verb, const std::string& request,
                   std::optional<uint64_t> heard = std::nullopt) {
    EXPECT_TRUE(Send(verb, request, heard.value_or(call_)));
    DirectReply reply = Receive();
    EXPECT_TRUE(reply.hung_up || reply.head.call == call_);
    return reply;
  }

  int fd() const { return fd_.get(); }

 private:
  const Descriptor fd_;
  uint64_t call_ = 0;
};

class DirectCallsTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    if (!cache_->arena().shared) GTEST_SKIP() << "no tmpfs to share memory in";
    v1::CommitReply commit;
    ASSERT_TRUE(worker_->Store(identity_, space_, tokens_, &commit).ok());
    mapper_ = std::make_unique<Worker>(target());
    mapper_->AttachArena();
    ASSERT_TRUE(mapper_->attached.direct_calls());
    mapper_->Open(identity_);
    peer_ = std::make_unique<DirectPeer>(fd_socket(), mapper_->attached);
  }
  void TearDown() override {
    peer_ = nullptr;
    mapper_ = nullptr;
    DaemonTest::TearDown();
  }
  std::string fd_socket() const { return dir_.path() + "/s.fd"; }
  std::string Acquire() const { return mapper_->AcquireOf(space_, tokens_).SerializeAsString(); }
  bool LeasesBecome(uint64_t leases) {
    return Eventually([=](const v1::GetStatsReply& stats) { return stats.leases() == leases; });
  }

  const Tokens tokens_ = SomeTokens(1, 100);
  std::unique_ptr<Worker> mapper_;
  std::unique_ptr<DirectPeer> peer_;
};

TEST_F(DirectCallsTest, ACallAnswersAsItDoesByGrpc) {
  const DirectReply direct = peer_->Call(DirectVerb::kAcquire, Acquire());
  ASSERT_EQ(direct.head.code, 0u) << direct.payload;
  v1::AcquireReply answered, by_grpc;
  ASSERT_TRUE(answered.ParseFromString(direct.payload));
  ASSERT_TRUE(mapper_->Acquire(space_, tokens_, &by_grpc).ok());
  EXPECT_EQ(answered.answers(0).restorable_tokens(), 100u);
  EXPECT_NE(answered.answers(0).lease(), by_grpc.answers(0).lease());
  for (v1::AcquireReply* reply : {&answered, &by_grpc}) reply->mutable_answers(0)->set_lease(0);
  EXPECT_EQ(answered.SerializeAsString(), by_grpc.SerializeAsString());
  EXPECT_EQ(worker_->Counter("calls.direct"), 1u);
  EXPECT_EQ(worker_->Counter("rpc.acquire"), 2u);
}

TEST_F(DirectCallsTest, EveryVerbIsServed) {
  v1::ReserveRequest reserve;
  reserve.set_session(mapper_->session);
  wire::ToProto({space_}, {SomeTokens(2, 40), {}}, reserve.mutable_sequence());
  v1::ReserveReply plan;
  ASSERT_TRUE(
      plan.ParseFromString(peer_->Call(DirectVerb::kReserve, reserve.SerializeAsString()).payload));
  EXPECT_NE(plan.reservation(), 0u);
  v1::CommitRequest commit;  // of nothing
  commit.set_session(mapper_->session);
  commit.set_reservation(plan.reservation());
  commit.set_tokens(40);
  EXPECT_EQ(peer_->Call(DirectVerb::kCommit, commit.SerializeAsString()).head.code, 0u);
  EXPECT_EQ(worker_->Counter("rpc.commit"), 1u);
  ASSERT_TRUE(
      plan.ParseFromString(peer_->Call(DirectVerb::kReserve, reserve.SerializeAsString()).payload));
  v1::AbandonRequest abandon;
  abandon.set_session(mapper_->session);
  abandon.set_reservation(plan.reservation());
  EXPECT_EQ(peer_->Call(DirectVerb::kAbandon, abandon.SerializeAsString()).head.code, 0u);
  EXPECT_EQ(peer_->Call(DirectVerb::kMatch, Acquire()).head.code, 0u);
  v1::AcquireReply acquired;
  ASSERT_TRUE(acquired.ParseFromString(peer_->Call(DirectVerb::kAcquire, Acquire()).payload));
  v1::ReleaseRequest release;
  release.set_session(mapper_->session);
  release.add_release()->set_lease(acquired.answers(0).lease());
  EXPECT_EQ(peer_->Call(DirectVerb::kRelease, release.SerializeAsString()).head.code, 0u);
  EXPECT_TRUE(LeasesBecome(0));
}

TEST_F(DirectCallsTest, WhatAnAnswerHandsOutThatWasNotHeardIsTakenBack) {
  peer_->Call(DirectVerb::kAcquire, Acquire());
  EXPECT_TRUE(LeasesBecome(1));
  peer_->Call(DirectVerb::kAcquire, Acquire(), /*heard=*/0);  // not the first answer
  EXPECT_TRUE(LeasesBecome(1));
  EXPECT_EQ(worker_->Counter("handed_out.taken_back"), 1u);
  peer_->Call(DirectVerb::kAcquire, Acquire(), /*heard=*/2);
  EXPECT_TRUE(LeasesBecome(2));
}

TEST_F(DirectCallsTest, AWorkerThatHangsUpKeepsWhatItHas) {
  peer_->Call(DirectVerb::kAcquire, Acquire());
  peer_ = nullptr;
  v1::AcquireReply reply;  // its session goes on, by gRPC
  EXPECT_TRUE(mapper_->Acquire(space_, tokens_, &reply).ok());
  EXPECT_TRUE(LeasesBecome(2));
}

TEST_F(DirectCallsTest, AConnectionServesItsOwnSessionAlone) {
  const std::string of_another = worker_->AcquireOf(space_, tokens_).SerializeAsString();
  const DirectReply reply = peer_->Call(DirectVerb::kAcquire, of_another);
  EXPECT_EQ(reply.head.code, static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(reply.payload, ::testing::HasSubstr("not its own"));
  EXPECT_TRUE(LeasesBecome(0));
}

TEST_F(DirectCallsTest, WhatIsNoRequestIsRefused) {
  const DirectReply reply = peer_->Call(DirectVerb::kAcquire, "\x0f garbage");
  EXPECT_NE(reply.head.code, 0u);
  EXPECT_EQ(peer_->Call(DirectVerb::kAcquire, Acquire()).head.code, 0u);
}

TEST_F(DirectCallsTest, ACallThatFailsHandsOutNothing) {
  v1::AcquireRequest request = mapper_->AcquireOf(space_, tokens_);
  *request.add_items() = request.items(0);
  request.mutable_items(1)->mutable_sequence()->set_space(space_ + 1);
  EXPECT_NE(peer_->Call(DirectVerb::kAcquire, request.SerializeAsString()).head.code, 0u);
  EXPECT_TRUE(LeasesBecome(0));
  EXPECT_EQ(worker_->Counter("handed_out.taken_back"), 1u);
}

TEST_F(DirectCallsTest, WhatIsTooLargeForThemGoesByGrpc) {
  v1::AcquireRequest many;
  many.set_session(mapper_->session);
  for (int i = 0; i < 30'000; ++i) many.add_items();  // 60 KB on the wire, 6 MB in memory
  EXPECT_EQ(peer_->Call(DirectVerb::kAcquire, many.SerializeAsString()).head.code,
            wire::kCallByGrpc);
  EXPECT_EQ(peer_->Call(static_cast<DirectVerb>(99), Acquire()).head.code, wire::kCallByGrpc);
  EXPECT_EQ(peer_->Call(DirectVerb::kAcquire, Acquire()).head.code, 0u);
}

TEST_F(DirectCallsTest, ALongAnswerComesInPieces) {
  v1::AcquireRequest request = mapper_->AcquireOf(space_, SomeTokens(3, 16'000));
  for (int i = 0; i < 16; ++i) {
    v1::AcquireRequest::Item* const item = i == 0 ? request.mutable_items(0) : request.add_items();
    item->mutable_sequence()->set_space(space_);  // with the tokens of the item before
    item->set_set(1);
    item->set_reserve(true);
  }
  const DirectReply direct = peer_->Call(DirectVerb::kAcquire, request.SerializeAsString());
  EXPECT_GT(direct.messages, 1) << direct.payload.size();
  v1::AcquireReply reply;
  ASSERT_TRUE(reply.ParseFromString(direct.payload));
  EXPECT_EQ(reply.answers_size(), 16);
  EXPECT_EQ(peer_->Call(DirectVerb::kMatch, Acquire()).head.code, 0u);
}

TEST_F(DirectCallsTest, WhoSendsNoCallIsHungUpOn) {
  ASSERT_TRUE(peer_->SendRaw("short"));
  EXPECT_TRUE(peer_->Receive().hung_up);
  Worker other(target());
  other.AttachArena("other");
  DirectPeer longer(fd_socket(), other.attached);
  ASSERT_TRUE(longer.SendRaw(std::string(wire::kMaxDirectMessageBytes + 1, 'x')));
  EXPECT_TRUE(longer.Receive().hung_up);
}

TEST_F(DirectCallsTest, WhoReadsNoAnswersIsHungUpOnAndGetsNothing) {
  const Tokens start(tokens_.begin(), tokens_.begin() + 20);
  const std::string request = mapper_->AcquireOf(space_, start).SerializeAsString();
  uint64_t sent = 0, leases = 0;
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) {
    while (sent < 100'000 && peer_->Send(DirectVerb::kAcquire, request, sent)) ++sent;
    return worker_->Counter("handed_out.taken_back") == 1;
  }));
  for (DirectReply reply = peer_->Receive(); !reply.hung_up; reply = peer_->Receive()) ++leases;
  EXPECT_TRUE(LeasesBecome(leases));
}

TEST_F(DirectCallsTest, TheConnectionEndsWithItsSession) {
  EXPECT_EQ(peer_->Call(DirectVerb::kMatch, Acquire()).head.code, 0u);
  mapper_->Detach();
  EXPECT_TRUE(peer_->Receive().hung_up);
}

TEST_F(DirectCallsTest, AServerThatStopsEndsACallThatWaits) {
  // Announced by a session that no server ends.
  const block::SessionId announcer = cache_->BeginSession("announcer");
  const auto space = cache_->OpenSpace(announcer, identity_);
  ASSERT_TRUE(space.ok()) << space.status();
  const auto announced = cache_->Reserve(announcer, {.space = space->space,
                                                     .tokens = SomeTokens(9, 200),
                                                     .content = {},
                                                     .groups = {},
                                                     .writable = {}});
  ASSERT_TRUE(announced.ok()) << announced.status();
  v1::AcquireRequest request = mapper_->AcquireOf(space_, SomeTokens(9, 200));
  request.mutable_items(0)->set_wait_pending_ms(60'000);
  ASSERT_TRUE(peer_->Send(DirectVerb::kAcquire, request.SerializeAsString(), 0));
  ASSERT_TRUE(
      Eventually([&](const v1::GetStatsReply&) { return worker_->Counter("calls.direct") > 0; }));
  const auto start = std::chrono::steady_clock::now();
  pollfd answer{.fd = peer_->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&answer, 1, 50), 0) << "the call does not wait";
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  Serve();
}

TEST_F(DirectCallsTest, EveryWorkerThatMapsTheArenaMayCallDirectly) {
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::unique_ptr<DirectPeer>> peers;
  for (uint32_t i = 1; i < block::kArenaSlots; ++i) {  // mapper_ has one
    workers.push_back(std::make_unique<Worker>(target()));
    workers.back()->AttachArena("mapper", 0);
    ASSERT_TRUE(workers.back()->attached.arena()) << i;
    workers.back()->Open(identity_);
    peers.push_back(std::make_unique<DirectPeer>(fd_socket(), workers.back()->attached));
  }
  for (size_t i = 0; i < peers.size(); ++i) {
    const std::string request = workers[i]->AcquireOf(space_, tokens_).SerializeAsString();
    EXPECT_EQ(peers[i]->Call(DirectVerb::kAcquire, request).head.code, 0u) << i;
  }
}

}  // namespace
}  // namespace prefixd::testing
