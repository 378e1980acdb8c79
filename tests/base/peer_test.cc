// T5: who is at the other end of a socket, by the kernel's word.
#include "base/peer.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

#include "base/process.h"

namespace prefixd::base {
namespace {

TEST(PeerTest, T5ThePeerIsTheProcessThatConnected) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const std::optional<Peer> peer = PeerOf(ends[0]);
  ASSERT_TRUE(peer.has_value());
  EXPECT_EQ(peer->pid, static_cast<uint64_t>(getpid()));
  EXPECT_EQ(peer->uid, geteuid());
  EXPECT_EQ(peer->pid_namespace, ThisProcess().pid_namespace);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(PeerOf(ends[0]), std::nullopt);
  EXPECT_EQ(PeerOf(-1), std::nullopt);
  const int unconnected = socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(PeerOf(unconnected), std::nullopt);
  close(unconnected);
}

TEST(PeerTest, T5ProcessesAreToldApartByUserAndWherePidsAreComparableByPid) {
  const Peer one{.pid = 7, .uid = 1, .pid_namespace = 5};
  EXPECT_TRUE(MayBeSameProcess(one, one));
  EXPECT_FALSE(MayBeSameProcess(one, {.pid = 8, .uid = 1, .pid_namespace = 5}));
  EXPECT_FALSE(MayBeSameProcess(one, {.pid = 0, .uid = 1, .pid_namespace = 5}));
  EXPECT_FALSE(MayBeSameProcess(one, {.pid = 7, .uid = 2, .pid_namespace = 5}));
  EXPECT_TRUE(MayBeSameProcess(one, {.pid = 8, .uid = 1, .pid_namespace = 6}))
      << "a daemon in another pid namespace sees other pids";
}

TEST(PeerTest, AMessageNamesThem) {
  EXPECT_EQ(Describe({.pid = 7, .uid = 1, .pid_namespace = 5}), "process 7 of user 1");
  EXPECT_EQ(Describe({.pid = 0, .uid = 1, .pid_namespace = 5}),
            "a process of user 1 that cannot be seen from here");
}

}  // namespace
}  // namespace prefixd::base
