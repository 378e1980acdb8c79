// Callers that give up: what a call hands out after its caller went is taken back, whatever the
// verb.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/ascii.h"

#include "tests/daemon/fixture.h"

namespace prefixd::testing {
namespace {

// HTTP/2 by hand: a peer whose window is closed, so that every answer waits in the daemon until the
// peer gives its calls up. With a gRPC client it is chance whether the answer came first.
class DeafPeer {
 public:
  explicit DeafPeer(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string closed_window("\0\x04\0\0\0\0", 6);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, closed_window));
  }
  ~DeafPeer() { ::close(fd_); }
  DeafPeer(const DeafPeer&) = delete;
  DeafPeer& operator=(const DeafPeer&) = delete;

  void Call(const std::string& method, const std::string& message) {
    Send(FramesOf(next_stream_, method, message));
    next_stream_ += 2;
  }
  // Every call.
  void GiveUp() {
    const std::string cancel("\0\0\0\x08", 4);
    for (uint32_t stream = 1; stream < next_stream_; stream += 2)
      Send(Frame(kReset, 0, stream, cancel));
  }

 private:
  static constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4;

  static std::string BigEndian(uint32_t value, int bytes) {
    std::string text;
    for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> 8 * i));
    return text;
  }
  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream, const std::string& body) {
    return BigEndian(static_cast<uint32_t>(body.size()), 3) + static_cast<char>(type) +
           static_cast<char>(flags) + BigEndian(stream, 4) + body;
  }
  // Literal, not indexed, not compressed.
  static std::string Header(const std::string& name, const std::string& value) {
    return std::string(1, '\0') + static_cast<char>(name.size()) + name +
           static_cast<char>(value.size()) + value;
  }
  static std::string FramesOf(uint32_t stream, const std::string& method,
                              const std::string& message) {
    const std::string headers = Header(":method", "POST") + Header(":scheme", "http") +
                                Header(":path", "/prefixd.v1.PrefixCache/" + method) +
                                Header(":authority", "localhost") + Header("te", "trailers") +
                                Header("content-type", "application/grpc");
    const std::string body =
        std::string(1, '\0') + BigEndian(static_cast<uint32_t>(message.size()), 4) + message;
    return Frame(kHeaders, 4, stream, headers) + Frame(kData, 1, stream, body);
  }
  void Send(const std::string& bytes) {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  const int fd_;
  uint32_t next_stream_ = 1;
};

class GiveUpTest : public DaemonTest {
 protected:
  static constexpr int kCalls = 30;

  std::string socket() const { return dir_.path() + "/s"; }
  // Things that a session may hold: of what the daemon says, those that come with an answer.
  static uint64_t Held(const v1::GetStatsReply& stats) {
    return stats.leases() + stats.reservations() + stats.pins();
  }
  // Calls of `method`, whose i-th message is message(i), hand out so many things each; once their
  // caller gives up, no more is held than before.
  template <typename MessageOf>
  void ExpectTakenBack(const std::string& method, uint64_t each, const MessageOf& message) {
    const std::string counter = "rpc." + absl::AsciiStrToLower(method);
    const uint64_t calls = worker_->Counter(counter);
    const uint64_t before = Held(worker_->Stats());
    const uint64_t taken_back = worker_->Counter("handed_out.taken_back");
    DeafPeer peer(socket());
    for (int i = 0; i < kCalls; ++i) peer.Call(method, message(i).SerializeAsString());
    EXPECT_TRUE(Eventually([&](const v1::GetStatsReply& stats) {
      return Of(stats, counter) == calls + kCalls && Held(stats) == before + kCalls * each;
    })) << "held: "
        << Held(worker_->Stats());
    peer.GiveUp();
    EXPECT_TRUE(Eventually([&](const v1::GetStatsReply& stats) { return Held(stats) == before; }))
        << "held: " << Held(worker_->Stats());
    EXPECT_EQ(worker_->Counter("handed_out.taken_back"), taken_back + kCalls * each);
  }
  static uint64_t Of(const v1::GetStatsReply& stats, const std::string& name) {
    for (const v1::Count& count : stats.counters()) {
      if (count.name() == name) return count.value();
    }
    return 0;
  }
  uint64_t LeaseOn(const Tokens& tokens) {
    v1::AcquireReply reply;
    EXPECT_TRUE(worker_->Acquire(space_, tokens, &reply).ok());
    return reply.answers(0).lease();
  }

  const Tokens tokens_ = SomeTokens(1, 64);
};

TEST_F(GiveUpTest, T4AnAcquireThatNobodyWaitsForHoldsNoLeaseAndNoPlan) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, tokens_, &stored).ok());
  ExpectTakenBack("Acquire", 2, [&](int) {
    v1::AcquireRequest request = worker_->AcquireOf(space_, tokens_);
    request.mutable_items(0)->set_reserve(true);
    return request;
  });
}

TEST_F(GiveUpTest, T4AReserveThatNobodyWaitsForHoldsNoReservation) {
  ExpectTakenBack("Reserve", 1, [&](int i) {
    v1::ReserveRequest request;
    request.set_session(worker_->session);
    wire::ToProto({space_}, {SomeTokens(100 + static_cast<uint64_t>(i), 40), {}},
                  request.mutable_sequence());
    return request;
  });
}

TEST_F(GiveUpTest, T4ACommitThatNobodyWaitsForLeasesNothing) {
  std::vector<v1::CommitRequest> commits;
  for (uint64_t i = 0; i < kCalls; ++i) {
    const Tokens tokens = SomeTokens(200 + i, 32);
    v1::ReserveReply plan;
    ASSERT_TRUE(worker_->Reserve(space_, tokens, &plan).ok());
    v1::CommitReply put;
    ASSERT_TRUE(worker_->Put(worker_->ChunksOf(identity_, tokens, plan, false), &put).ok());
    v1::CommitRequest& commit = commits.emplace_back();
    commit.set_session(worker_->session);
    commit.set_reservation(plan.reservation());
    commit.set_tokens(32);
    commit.set_lease(true);
  }
  DeafPeer peer(socket());
  for (const v1::CommitRequest& commit : commits) peer.Call("Commit", commit.SerializeAsString());
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply& stats) {
    return stats.leases() == kCalls && stats.reservations() == 0;
  }));
  peer.GiveUp();
  EXPECT_TRUE(Eventually([&](const v1::GetStatsReply& stats) { return stats.leases() == 0; }));
  // What was stored stays.
  v1::AcquireReply found;
  ASSERT_TRUE(worker_->Acquire(space_, SomeTokens(200, 32), &found).ok());
  EXPECT_EQ(found.answers(0).restorable_tokens(), 32u);
}

TEST_F(GiveUpTest, T4APinThatNobodyWaitsForPinsNothing) {
  std::vector<Tokens> sequences;
  for (uint64_t i = 0; i < kCalls; ++i) {
    v1::CommitReply stored;
    sequences.push_back(SomeTokens(300 + i, 32));
    ASSERT_TRUE(worker_->Store(identity_, space_, sequences.back(), &stored).ok());
  }
  const auto pin = [&](int i) {
    v1::PinRequest request;
    request.set_session(worker_->session);
    wire::ToProto({space_}, {sequences[static_cast<size_t>(i)], {}}, request.mutable_sequence());
    return request;
  };
  ExpectTakenBack("Pin", 1, pin);
  // One that was pinned before stays pinned by whoever did it.
  v1::PinReply pinned;
  Context context;
  ASSERT_TRUE(worker_->cache->Pin(&context, pin(0), &pinned).ok());
  ASSERT_NE(pinned.pin(), 0u);
  ExpectTakenBack("Pin", 0, [&](int) { return pin(0); });
  EXPECT_EQ(worker_->Stats().pins(), 1u);
}

TEST_F(GiveUpTest, T4AnAnswerThatArrivesIsKept) {
  v1::CommitReply stored;
  ASSERT_TRUE(worker_->Store(identity_, space_, tokens_, &stored).ok());
  LeaseOn(tokens_);
  LeaseOn(tokens_);
  v1::ReserveReply plan;
  ASSERT_TRUE(worker_->Reserve(space_, SomeTokens(7, 40), &plan).ok());
  EXPECT_EQ(worker_->Stats().leases(), 2u);
  EXPECT_EQ(worker_->Stats().reservations(), 1u);
  EXPECT_EQ(worker_->Counter("handed_out.taken_back"), 0u);
}

}  // namespace
}  // namespace prefixd::testing
