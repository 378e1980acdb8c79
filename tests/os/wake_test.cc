#include "os/wake.h"

#include <utility>

#include "gtest/gtest.h"

namespace prefixd::os {
namespace {

bool IsReadable(const Wake& wake) {
  pollfd polled{.fd = wake.fd(), .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) == 1;
}

TEST(WakeTest, ItIsReadableFromSetToClearHoweverOftenItWasSet) {
  const Wake wake;
  ASSERT_TRUE(wake);
  EXPECT_FALSE(IsReadable(wake));
  for (int i = 0; i < 100'000; ++i) wake.Set();  // more than a pipe takes
  EXPECT_TRUE(IsReadable(wake));
  wake.Clear();
  EXPECT_FALSE(IsReadable(wake));
  wake.Clear();
  wake.Set();
  EXPECT_TRUE(IsReadable(wake));
}

TEST(WakeTest, AMovedOneKeepsItsDescriptorAndTheOtherHasNone) {
  Wake first;
  const int fd = first.fd();
  Wake second(std::move(first));
  EXPECT_EQ(second.fd(), fd);
  EXPECT_FALSE(first);  // NOLINT: what a move leaves is stated
  second.Close();
  EXPECT_FALSE(second);
}

TEST(PollForTest, ItEndsWhenTheLimitHasPassedAndNotBefore) {
  const Wake wake;
  pollfd polled{.fd = wake.fd(), .events = POLLIN, .revents = 0};
  const auto begin = std::chrono::steady_clock::now();
  PollFor({&polled, 1}, std::chrono::microseconds(1500));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::microseconds(1500));
  EXPECT_EQ(polled.revents, 0);
  PollFor({&polled, 1}, std::chrono::nanoseconds(-1));
  wake.Set();
  PollFor({&polled, 1}, std::chrono::hours(1));
  EXPECT_NE(polled.revents & POLLIN, 0);
}

}  // namespace
}  // namespace prefixd::os
