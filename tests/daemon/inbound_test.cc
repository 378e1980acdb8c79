// T3: what unfinished messages keep in memory, over several connections, until gRPC closes them.
#include "daemon/inbound.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prefixd::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr size_t kBuffer = 65'536;    // gRPC reads into buffers of this size
constexpr uint64_t kStream = 40'960;  // what an open stream counts as

std::string Number(uint64_t value, int bytes) {
  std::string text;
  while (bytes-- > 0) text.push_back(static_cast<char>(value >> 8 * bytes & 255));
  return text;
}
std::string Frame(uint8_t type, uint32_t stream, const std::string& payload, uint8_t flags = 0) {
  return Number(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
         Number(stream, 4) + payload;
}

// A worker and gRPC at the ends of one connection.
class Connection {
 public:
  explicit Connection(Inbound* inbound) {
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends_.data()), 0);
    if (inbound != nullptr) inbound->Watch(ends_[1]);
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  }
  ~Connection() {
    ::close(ends_[0]);
    Close();
  }
  // The worker begins a message on each of so many streams; gRPC reads each into a new buffer.
  // Returns false if gRPC's read failed.
  bool BeginMessages(int count) {
    bool read = Send(Frame(6, 0, "12345678"));  // a ping
    for (int i = 0; i < count; ++i) {
      const std::string begun = std::string(1, '\0') + Number(100, 4) + "b";
      read = Send(Frame(1, next_, "h") + Frame(0, next_, begun));
      next_ += 2;
    }
    return read;
  }
  // The worker asks as many calls in whole messages, and gives them up. The calls stay until Free.
  bool AskAndGiveUp(int count) {
    bool read = true;
    for (int i = 0; i < count; ++i) {
      read = Send(Frame(1, next_, "h", kEndStream));
      calls_.push_back(std::make_unique<InboundCall>(Name()));
      read = Send(Frame(3, next_, "code")) && read;
      next_ += 2;
    }
    return read;
  }
  // The worker asks, and prefixd answers before it frees the calls.
  bool AskAndBeAnswered(int count) {
    for (int i = 0; i < count; ++i) {
      Send(Frame(1, next_, "h", kEndStream));
      calls_.push_back(std::make_unique<InboundCall>(Name()));
      Answer(Frame(1, next_, "t", kEndStream));
      next_ += 2;
    }
    return Send(Frame(6, 0, "12345678"));
  }
  void FreeCalls() { calls_.clear(); }
  bool PassAByte() {
    char byte = 'x';
    iovec part{.iov_base = &byte, .iov_len = 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return ::send(ends_[0], &byte, 1, MSG_NOSIGNAL) == 1 && ::recvmsg(ends_[1], &message, 0) == 1;
  }
  void Close() {  // gRPC does, once it has freed what the connection had
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }

 private:
  static constexpr uint8_t kEndStream = 1;
  std::string Name() const { return "fd:" + std::to_string(ends_[1]); }  // as gRPC names it
  void Answer(std::string text) {
    iovec part{.iov_base = text.data(), .iov_len = text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    EXPECT_EQ(::sendmsg(ends_[1], &message, 0), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(::recv(ends_[0], text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  bool Send(const std::string& text) {
    if (::send(ends_[0], text.data(), text.size(), MSG_NOSIGNAL) < 0) return false;
    std::vector<char>& buffer = buffers_.emplace_back(kBuffer);
    iovec part{.iov_base = buffer.data(), .iov_len = buffer.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return ::recvmsg(ends_[1], &message, 0) == static_cast<ssize_t>(text.size());
  }

  std::array<int, 2> ends_{-1, -1};
  uint32_t next_ = 1;
  std::vector<std::unique_ptr<InboundCall>> calls_;
  std::vector<std::vector<char>> buffers_;  // kept: two of them never begin at one place
};

class InboundTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kOne = kStream + 1 + kBuffer;  // a stream with a header and a buffer
  std::vector<std::string> told_;
  Inbound inbound_{10 * kOne, [this](const std::string& why) { told_.push_back(why); }};
};

TEST_F(InboundTest, T3OneByteOfEachMessageKeepsABufferAndTheLargestConnectionIsCut) {
  Connection small(&inbound_), large(&inbound_);
  EXPECT_TRUE(small.BeginMessages(4));
  large.BeginMessages(6);
  EXPECT_TRUE(told_.empty());
  large.BeginMessages(1);  // one buffer more than all may keep
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_THAT(told_[0], HasSubstr(std::to_string(7 * kOne)));
  EXPECT_FALSE(large.BeginMessages(1));
  EXPECT_TRUE(small.BeginMessages(1));
}

TEST_F(InboundTest, T3WhatACutConnectionHasCountsUntilGrpcClosesIt) {
  Connection cut(&inbound_), next(&inbound_), innocent(&inbound_);
  cut.BeginMessages(11);
  innocent.BeginMessages(1);
  next.BeginMessages(8);
  EXPECT_EQ(told_.size(), 1u);
  next.BeginMessages(1);  // with the first, whose memory is not free yet, more than twice as much
  EXPECT_EQ(told_.size(), 2u);
  EXPECT_FALSE(next.BeginMessages(1));
  EXPECT_TRUE(innocent.BeginMessages(0)) << "who has little is not cut for it";
  cut.Close();
  next.Close();
  inbound_.WaitForRoom(std::chrono::hours(1));
  Connection later(&inbound_);
  EXPECT_TRUE(later.BeginMessages(9));
  EXPECT_EQ(told_.size(), 2u);
}

TEST_F(InboundTest, T3NewConnectionsWaitUntilGrpcHasFreedThoseThatWereCut) {
  Connection cut(&inbound_);
  inbound_.WaitForRoom(std::chrono::hours(1));  // nothing was cut
  cut.BeginMessages(11);
  const auto cut_at = std::chrono::steady_clock::now();
  // Connections that wait in a row wait once: the time counts from the cut.
  while (std::chrono::steady_clock::now() < cut_at + milliseconds(20))
    inbound_.WaitForRoom(milliseconds(20));
  const auto waited = std::chrono::steady_clock::now();
  for (int i = 0; i < 1'000; ++i) inbound_.WaitForRoom(milliseconds(20));
  EXPECT_LT(std::chrono::steady_clock::now() - waited, std::chrono::seconds(20))
      << "1,000 in a row";
  auto waits =
      std::async(std::launch::async, [this] { inbound_.WaitForRoom(std::chrono::hours(1)); });
  EXPECT_EQ(waits.wait_for(milliseconds(50)), std::future_status::timeout);
  cut.Close();
  waits.get();
}

// gRPC forgets a stream at its reset, so that a peer may begin the next one while prefixd has not
// freed the call.
TEST_F(InboundTest, T3CallsThatTheirPeerGaveUpCountUntilTheyAreFreed) {
  Connection hasty(&inbound_), innocent(&inbound_);
  EXPECT_TRUE(innocent.BeginMessages(1));
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(hasty.AskAndGiveUp(20)) << i;
    hasty.FreeCalls();
  }
  EXPECT_TRUE(told_.empty());
  hasty.AskAndGiveUp(30);
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_FALSE(hasty.AskAndGiveUp(1));
  EXPECT_TRUE(innocent.BeginMessages(1));
}

TEST_F(InboundTest, T3CallsThatWereAnsweredOrWaitForTheirAnswerCountNothing) {
  Connection worker(&inbound_);
  EXPECT_TRUE(worker.AskAndBeAnswered(1'000)) << "which prefixd frees a moment later";
  EXPECT_TRUE(worker.AskAndGiveUp(1)) << "one of them was given up";
  EXPECT_TRUE(told_.empty());
}

TEST_F(InboundTest, T3ACutConnectionCountsUntilItsCallsAreFreedToo) {
  Connection hasty(&inbound_);
  hasty.AskAndGiveUp(30);
  hasty.Close();
  auto waits =
      std::async(std::launch::async, [this] { inbound_.WaitForRoom(std::chrono::hours(1)); });
  EXPECT_EQ(waits.wait_for(milliseconds(50)), std::future_status::timeout);
  hasty.FreeCalls();
  waits.get();
}

// As in a process that starts a program: at the fork, one of gRPC's threads is in the midst of
// a read.
TEST_F(InboundTest, AForkedProcessReadsWithoutGrpcsThreads) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      Connection mine(&inbound_);
      while (!stop) mine.PassAByte();
    });
  }
  for (int i = 0; i < 200; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(10);
      Connection own(nullptr);
      ::_exit(own.PassAByte() ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "after " << i;
    if (status != 0) break;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace prefixd::daemon
