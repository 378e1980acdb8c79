// Bytes on their way have a limit, for each server and for all.
#include "remote/shares.h"

#include <poll.h>

#include <memory>

#include "gtest/gtest.h"

namespace prefixd::remote {
namespace {

bool Readable(int fd) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&ready, 1, 0) == 1;
}

class SharesTest : public ::testing::Test {
 protected:
  using Share = Shares::Share;
  std::unique_ptr<Share> Ask(const int& node, uint64_t bytes) {
    return std::make_unique<Share>(&shares_, &node, bytes);
  }
  Shares shares_{{.of_node = 10, .of_store = 20}};
  const int a_ = 0, b_ = 0, c_ = 0;
};

TEST_F(SharesTest, WhatANodeHasNoRoomForWaitsUntilItHas) {
  auto first = Ask(a_, 6);
  auto second = Ask(a_, 5);
  EXPECT_TRUE(first->granted());
  EXPECT_FALSE(second->granted());
  EXPECT_FALSE(Readable(second->fd()));
  EXPECT_TRUE(Ask(b_, 5)->granted());
  first.reset();
  EXPECT_TRUE(second->granted());
  EXPECT_TRUE(Readable(second->fd()));
  EXPECT_EQ(shares_.InFlight(&a_), 5u);
}

TEST_F(SharesTest, OneOfAnySizeAlwaysFits) {
  auto large = Ask(a_, 1000);
  EXPECT_TRUE(large->granted());
  EXPECT_FALSE(Ask(b_, 1)->granted());
  large.reset();
  EXPECT_TRUE(Ask(b_, 1)->granted());
}

TEST_F(SharesTest, AllTogetherHaveALimitAndTheLongestWaitingIsNext) {
  auto one = Ask(a_, 9), two = Ask(b_, 9);
  auto large = Ask(c_, 10);
  auto small = Ask(c_, 1);
  EXPECT_FALSE(large->granted());
  EXPECT_FALSE(small->granted());  // it would fit, but others would never let the large one pass
  one.reset();
  EXPECT_TRUE(large->granted());
  EXPECT_FALSE(small->granted());
  large.reset();
  EXPECT_TRUE(small->granted());
}

TEST_F(SharesTest, WhoGivesUpLetsOthersPass) {
  auto first = Ask(a_, 6);
  auto second = Ask(a_, 10);
  auto third = Ask(a_, 4);
  EXPECT_FALSE(third->granted());
  second.reset();
  EXPECT_TRUE(third->granted());
  first.reset();
  third.reset();
  EXPECT_EQ(shares_.InFlight(&a_), 0u);
}

}  // namespace
}  // namespace prefixd::remote
