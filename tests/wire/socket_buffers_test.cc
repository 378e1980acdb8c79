// gRPC's sockets are found by their path, and no other socket is touched.
#include "wire/socket_buffers.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/support/unix_sockets.h"
#include "wire/long_stream.h"

namespace prefixd::wire {
namespace {

sockaddr_un NameOf(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  return name;
}

// A listener, a connection to it, and what was accepted.
class Connection {
 public:
  explicit Connection(const std::string& path) : path_(path) {
    const sockaddr_un name = NameOf(path);
    const auto* address = reinterpret_cast<const sockaddr*>(&name);
    EXPECT_EQ(::bind(listener_, address, sizeof(name)), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::connect(connected_, address, sizeof(name)), 0);
    accepted_ = ::accept(listener_, nullptr, nullptr);
    EXPECT_GE(accepted_, 0);
  }
  ~Connection() {
    for (const int fd : {listener_, connected_, accepted_}) ::close(fd);
    ::unlink(path_.c_str());
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  int Smaller() const {
    return std::min(LargestSendBuffer(path_, SocketEnd::kConnected),
                    LargestSendBuffer(path_, SocketEnd::kAccepted));
  }

 private:
  const std::string path_;
  const int listener_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const int connected_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  int accepted_ = -1;
};

class SocketBuffersTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& name) const {
    return std::filesystem::temp_directory_path() /
           (name + "." + std::to_string(::getpid()) + ".sock");
  }
  const std::string path_ = PathOf("prefixd_wire");
  const std::string other_path_ = path_ + "2";
  const Connection ours_{path_}, other_{other_path_};
  const int before_ = ours_.Smaller();
};

TEST_F(SocketBuffersTest, BothEndsOfAPathGrowAndNoOtherSocketDoes) {
  EXPECT_GE(EnlargeSendBuffers("unix:" + path_), 2);
  EXPECT_GT(ours_.Smaller(), before_);
  EXPECT_EQ(other_.Smaller(), before_);
  EXPECT_EQ(EnlargeSendBuffers("unix:" + path_), 0) << "they have grown already";
  EXPECT_GE(EnlargeSendBuffers("unix://" + other_path_), 2);
  EXPECT_EQ(other_.Smaller(), ours_.Smaller());
}

TEST_F(SocketBuffersTest, OtherAddressesHaveNoSocketHere) {
  for (const char* address : {"", "unix:", "unix://", "127.0.0.1:7777", "dns:///host:1"}) {
    EXPECT_EQ(EnlargeSendBuffers(address), 0) << address;
    EXPECT_TRUE(UnixPath(address).empty()) << address;
  }
  EXPECT_EQ(EnlargeSendBuffers(path_), 0) << "a path is no address";
  EXPECT_EQ(ours_.Smaller(), before_);
}

TEST_F(SocketBuffersTest, AStreamGrowsItsSocketOnceItIsLong) {
  LongStream stream("unix:" + path_, std::nullopt);
  for (int piece = 0; piece < 3; ++piece) stream.Sent(kMaxPieceBytes);
  LongStream("unix:" + path_, std::nullopt).Received(kLongStreamBytes);
  EXPECT_EQ(ours_.Smaller(), before_);
  stream.Sent(kMaxPieceBytes);
  EXPECT_GT(ours_.Smaller(), before_);
}

}  // namespace
}  // namespace prefixd::wire
