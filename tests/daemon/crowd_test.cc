// What a crowd of clients, or one that plays a crowd, may make the daemon hold (T3).
#include <sys/wait.h>

#include "tests/daemon/fixture.h"
#include "tests/daemon/raw_http2.h"

namespace prefixd::testing {
namespace {

class CrowdTest : public DaemonTest {
 protected:
  CrowdTest() { max_sessions_ = 8; }
  static v1::AttachRequest AnyAttach() {
    v1::AttachRequest request;
    request.set_worker("crowd");
    request.set_protocol(1);
    return request;
  }
  // Attaches more and more at `target`; what the first that is refused hears.
  grpc::Status Crowd(const std::string& target, const std::string& token_file = "") {
    while (static_cast<int>(crowd_.size()) <= max_sessions_) {
      auto worker = std::make_unique<Worker>(target, token_file);
      grpc::Status status = worker->TryAttach(AnyAttach());
      if (!status.ok()) return status;
      crowd_.push_back(std::move(worker));
    }
    return grpc::Status::OK;
  }
  std::vector<std::unique_ptr<Worker>> crowd_;
};

// T3
TEST_F(CrowdTest, SessionsHaveALimitThatIsSaid) {
  const grpc::Status status = Crowd(target());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(),
              ::testing::MatchesRegex(
                  "attach: 4 sessions are attached, at most 8 \\(--max-sessions\\), and of process "
                  "[0-9]+ of user [0-9]+ never more than it leaves to others"));
  EXPECT_EQ(crowd_.size(), 3u) << "the fixture's worker is one";
  EXPECT_EQ(worker_->Counter("refused.sessions"), 1u);
  crowd_.clear();
  EXPECT_TRUE(Eventually([](const v1::GetStatsReply& stats) { return stats.sessions() == 1; }));
  EXPECT_TRUE(Eventually([&](const auto&) {  // its seat goes back when gRPC is done with a stream
    return Worker(target()).TryAttach(AnyAttach()).ok();
  }));
}

// T3
TEST_F(CrowdTest, OneHostBehindTcpLeavesSessionsToOthers) {
  const grpc::Status status = Crowd(tcp(), TokenFile());
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(crowd_.size(), 4u) << "as many as are left beside them and the fixture's worker";
  Worker local(target());
  EXPECT_TRUE(local.TryAttach(AnyAttach()).ok());
}

// T3: whoever begins messages and does not end them loses them, before the daemon holds more of
// them than it may.
class UnfinishedTest : public CrowdTest {
 protected:
  UnfinishedTest() { message_bytes_ = uint64_t{32} << 20; }
  // Until all are sent but for their ends, and the daemon has given up what is too much.
  bool Bounded(RawHttp2* client, uint64_t most_bytes) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (client->Step() || client->unfinished_bytes() > most_bytes) {
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }
};

// What prefixd itself ended counts no more: each of these leaves a piece that is not whole.
TEST_F(UnfinishedTest, T3AWorkerWhosePutsAreRefusedKeepsItsConnection) {
  v1::PutChunk header, page;
  header.mutable_header()->set_session(worker_->session);
  header.mutable_header()->set_reservation(4242);
  page.mutable_page()->set_data(std::string(1 << 20, 'p'));
  for (int i = 0; i < 3000; ++i) {
    Context context;
    v1::CommitReply reply;
    const auto stream = worker_->cache->Put(&context, &reply);
    if (stream->Write(header)) stream->Write(page);
    EXPECT_NE(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE) << i;
  }
  EXPECT_EQ(worker_->Counter("connections.cut"), 0u);
}

TEST_F(UnfinishedTest, SixtyMessagesOfTheLargestSizeAreNotHeld) {
  RawHttp2 client(dir_.path() + "/s");
  for (int i = 0; i < 60; ++i) client.Begin("/prefixd.v1.PrefixCache/Match", 16 << 20);
  EXPECT_TRUE(Bounded(&client, uint64_t{64} << 20)) << client.unfinished_bytes();
}

TEST_F(UnfinishedTest, NorIsOneThatSaysItHasAGigabyte) {
  RawHttp2 client(dir_.path() + "/s");
  client.Begin("/prefixd.v1.PrefixCache/Release", 1'000'000'000);
  EXPECT_TRUE(Bounded(&client, uint64_t{64} << 20)) << client.unfinished_bytes();
}

// T3: gRPC would cancel anybody's calls then.
TEST_F(UnfinishedTest, AnotherProcessesSessionsDoNotPayForThem) {
  Worker innocent(target()), other(target());
  ASSERT_TRUE(innocent.TryAttach(AnyAttach()).ok());
  ASSERT_TRUE(other.TryAttach(AnyAttach()).ok());
  const pid_t attacker = ::fork();
  if (attacker == 0) {
    RawHttp2 client(dir_.path() + "/s");
    for (int i = 0; i < 8; ++i) client.Begin("/prefixd.v1.PrefixCache/Match", 16 << 20);
    ::_exit(Bounded(&client, uint64_t{24} << 20) ? 0 : 1);
  }
  int ended = 0;
  ::waitpid(attacker, &ended, 0);
  EXPECT_EQ(ended, 0) << "its own messages are bounded";
  EXPECT_EQ(worker_->Stats().sessions(), 3u);
  EXPECT_GE(worker_->Counter("connections.cut"), 1u);
}

// T3: however fast they come, gRPC never has more of them than it may.
TEST_F(UnfinishedTest, WhoeverHasMostIsCutAndWhoHasLittleStays) {
  const auto little = std::make_unique<RawHttp2>(dir_.path() + "/s");
  little->Begin("/prefixd.v1.PrefixCache/Match", 1 << 20);
  while (little->Step()) {
  }
  EXPECT_EQ(little->unfinished_bytes(), uint64_t{1} << 20 | 4) << "but for its last byte";
  std::vector<std::unique_ptr<RawHttp2>> much;
  for (int i = 0; i < 4; ++i) {
    much.push_back(std::make_unique<RawHttp2>(dir_.path() + "/s"));
    much.back()->Begin("/prefixd.v1.PrefixCache/Match", 15 << 20);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& client : much) moved |= client->Step();
    uint64_t bytes = 0;
    for (const auto& client : much) bytes += client->unfinished_bytes();
    EXPECT_LE(bytes, message_bytes_ + (uint64_t{4} << 20)) << "and what is in the sockets";
  }
  little->Step();
  EXPECT_EQ(little->unfinished_bytes(), uint64_t{1} << 20 | 4);
  EXPECT_GE(worker_->Counter("connections.cut"), 2u);
  EXPECT_EQ(worker_->Stats().sessions(), 1u);
}

// T3: a call that has begun costs the daemon some, without any message.
TEST_F(UnfinishedTest, StreamsWithoutAMessageCountToo) {
  std::vector<std::unique_ptr<RawHttp2>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawHttp2>(dir_.path() + "/s"));
    for (int j = 0; j < 1000; ++j) clients.back()->Begin("/prefixd.v1.PrefixCache/Put", 1);
  }
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply&) {
    for (const auto& client : clients) client->Step();
    return worker_->Counter("connections.cut") >= 4;
  }));
  EXPECT_EQ(worker_->Stats().sessions(), 1u);
}

}  // namespace
}  // namespace prefixd::testing
