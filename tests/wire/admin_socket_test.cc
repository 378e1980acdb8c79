// Where people find the admin socket.
#include "wire/admin_socket.h"

#include <gtest/gtest.h>

namespace prefixd::wire {
namespace {

// T5
TEST(AdminSocketTest, StandsBesideTheWorkersSocket) {
  EXPECT_EQ(AdminSocketOf("/run/prefixd/prefixd.sock"), "/run/prefixd/prefixd.admin.sock");
  EXPECT_EQ(AdminSocketOf("/run/prefixd/socket"), "/run/prefixd/socket.admin.sock");
  EXPECT_EQ(AdminSocketOf("/run/.sock"), "/run/.sock.admin.sock");
}

// T5
TEST(AdminSocketTest, OnlyUnixAddressesHaveAPath) {
  EXPECT_EQ(SocketPathOf("unix:///a/b"), "/a/b");
  EXPECT_EQ(SocketPathOf("unix:/a/b"), "/a/b");
  EXPECT_EQ(SocketPathOf("unix:b"), "b");
  for (const char* other : {"", "127.0.0.1:7777", "dns:///host:1", "/a/b"}) {
    EXPECT_EQ(SocketPathOf(other), "") << other;
  }
}

}  // namespace
}  // namespace prefixd::wire
