#include "os/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace prefixd::os {
namespace {

class Listener {
 public:
  Listener() : folder_(testing::TempDir() + "prefixd_os_test_XXXXXX") {
    if (mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << folder_;
    name_.sun_family = AF_UNIX;
    (folder_ + "/s").copy(name_.sun_path, sizeof(name_.sun_path) - 1);
    fd_ = NewSocket(AF_UNIX, SOCK_STREAM, 0, Waits::kNo);
    if (bind(fd_, address(), sizeof(name_)) != 0 || listen(fd_, 8) != 0) ADD_FAILURE() << folder_;
  }
  ~Listener() {
    close(fd_);
    std::filesystem::remove_all(folder_);
  }
  int fd() const { return fd_; }
  int Connect() const {
    const int fd = NewSocket(AF_UNIX, SOCK_STREAM, 0, Waits::kYes);
    EXPECT_EQ(connect(fd, address(), sizeof(name_)), 0);
    return fd;
  }

 private:
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&name_); }
  std::string folder_;
  sockaddr_un name_{};
  int fd_ = -1;
};

bool IsNonBlocking(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0; }
bool ClosesOnExec(int fd) { return (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0; }

TEST(SocketsTest, NewAndAcceptedSocketsHaveTheirFlags) {
  const Listener listener;
  EXPECT_TRUE(IsNonBlocking(listener.fd()));
  EXPECT_TRUE(ClosesOnExec(listener.fd()));
  EXPECT_EQ(AcceptFrom(listener.fd()), -1) << "and does not wait";
  const int client = listener.Connect();
  EXPECT_FALSE(IsNonBlocking(client));
  EXPECT_TRUE(ClosesOnExec(client));
  const int accepted = AcceptFrom(listener.fd());
  ASSERT_GE(accepted, 0);
  EXPECT_TRUE(IsNonBlocking(accepted));
  EXPECT_TRUE(ClosesOnExec(accepted));
  EXPECT_EQ(NewSocket(-1, SOCK_STREAM, 0, Waits::kYes), -1);
  close(accepted);
  close(client);
}

TEST(SocketsTest, AFolderForSocketsIsThereOrNotNamed) {
  const std::string folder = FolderForSockets();
  EXPECT_TRUE(folder.empty() || std::filesystem::is_directory(folder)) << folder;
}

TEST(SocketsTest, ThePeerIsWhoConnected) {
  const Listener listener;
  const int client = listener.Connect(), accepted = AcceptFrom(listener.fd());
  const auto peer = PeerOf(accepted);
  ASSERT_TRUE(peer.has_value());
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_EQ(peer->gid, getegid());
  const auto own = static_cast<size_t>(std::max(getgroups(0, nullptr), 0));
  EXPECT_EQ(GroupsOfPeer(accepted, 1024).size(), own);
  EXPECT_FALSE(PeerOf(-1).has_value());
  close(accepted);
  close(client);
}

TEST(SocketsTest, AnIdTellsASocketFromTheNextOneOfItsNumber) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  const uint64_t first = SocketId(ends[0]), second = SocketId(ends[1]);
  EXPECT_NE(first, 0u);
  EXPECT_NE(first, second);
  EXPECT_EQ(SocketId(ends[0]), first);
  const int copy = dup(ends[0]);
  EXPECT_EQ(SocketId(copy), first) << "the socket, not its number";
  close(copy);
  close(ends[0]);
  EXPECT_EQ(SocketId(ends[0]), 0u);
  const int next = socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(next, ends[0]) << "the lowest number that is free";
  EXPECT_NE(SocketId(next), first);
  close(next);
  close(ends[1]);
  const int no_socket = open("/", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(SocketId(no_socket), 0u);
  close(no_socket);
}

TEST(SocketsTest, APeerThatHangsUpIsNoticed) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  EXPECT_FALSE(HasHungUp(ends[1]));
  ASSERT_EQ(write(ends[0], "x", 1), 1);
  EXPECT_FALSE(HasHungUp(ends[1])) << "it only spoke";
  char byte = 0;
  ASSERT_EQ(read(ends[1], &byte, 1), 1);
  shutdown(ends[0], SHUT_WR);
  EXPECT_TRUE(HasHungUp(ends[1]));
  close(ends[0]);
  EXPECT_TRUE(HasHungUp(ends[1]));
  close(ends[1]);
}

TEST(SocketsTest, AWatchedConnectionProbesItsPeer) {
  const int fd = NewSocket(AF_INET, SOCK_STREAM, 0, Waits::kNo);
  WatchPeer(fd, {.idle_s = 7, .interval_s = 3, .count = 2, .unacknowledged_ms = 5'000});
  int probes = 0;
  socklen_t bytes = sizeof(probes);
  ASSERT_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &probes, &bytes), 0);
  EXPECT_NE(probes, 0);
  close(fd);
}

}  // namespace
}  // namespace prefixd::os
