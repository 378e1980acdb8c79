// The log never waits for its reader, and no message fills it.
#include "daemon/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "spdlog/spdlog.h"

namespace prefixd::testing {
namespace {

using daemon::LogLimits;
using daemon::LogSink;
using ::testing::HasSubstr;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  LogTest() { EXPECT_EQ(::pipe(pipe_), 0); }
  // The pipe stays: a thread that gave up its reader may still be at it.
  // The sink says what the logger is given.
  std::shared_ptr<LogSink> Open(const LogLimits& limits) {
    auto sink = std::make_shared<LogSink>(pipe_[1], limits);
    logger_ = std::make_unique<spdlog::logger>("test", sink);
    return sink;
  }
  // What is in the pipe now.
  std::string Read() {
    ::fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(pipe_[0], buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }

  int pipe_[2] = {-1, -1};
  std::unique_ptr<spdlog::logger> logger_;
};

constexpr std::chrono::hours kLong{1};

TEST_F(LogTest, LinesComeOutWithTimeAndLevelInTheirOrder) {
  const auto sink = Open({});
  logger_->info("one of {}", 2);
  logger_->warn("two");
  ASSERT_TRUE(sink->Flush(kLong));
  const std::string text = Read();
  EXPECT_THAT(text, HasSubstr(" info one of 2\n"));
  EXPECT_THAT(text, HasSubstr(" warning two\n"));
  EXPECT_LT(text.find("one of 2"), text.find("two"));
}

TEST_F(LogTest, T4AReaderThatStopsKeepsNobodyWaitingAndLinesAreCounted) {
  const LogLimits limits{.queue_lines = 100, .burst = 1e9, .at_exit = std::chrono::milliseconds(1)};
  auto sink = Open(limits);
  // 10 MB into a pipe of 64 KiB that nobody reads: would hang where a line waits for its reader.
  for (int i = 0; i < 100'000; ++i) logger_->info("line {:0100}", i);
  EXPECT_GT(sink->loss().dropped, 90'000u);
  EXPECT_EQ(sink->loss().limited, 0u);
  EXPECT_FALSE(sink->Flush(std::chrono::milliseconds(1)));
  // Whoever reads again learns how many are missing.
  std::string text;
  while (text.find("lines were dropped") == std::string::npos) text += Read();
  EXPECT_THAT(text, HasSubstr("line 000"));
  // Nobody reads at the end either: it comes all the same.
  for (int i = 0; i < 100'000; ++i) logger_->info("line {:0100}", i);
  logger_.reset();
  sink.reset();
}

TEST_F(LogTest, T4OfOneMessageSoManyLinesPassAndTheRestIsANumber) {
  const auto sink = Open({.burst = 20, .per_second = 1e-6});
  for (int i = 0; i < 1000; ++i) logger_->info("acquire HIT kind=LCP request_id={}", i);
  logger_->warn("ssd: cannot write");
  EXPECT_EQ(sink->loss().limited, 980u);
  EXPECT_EQ(sink->loss().dropped, 0u);
  std::string text;
  while (text.find("log: 980 more of: acquire HIT kind") == std::string::npos) text += Read();
  EXPECT_THAT(text, HasSubstr("request_id=19\n"));
  EXPECT_THAT(text, Not(HasSubstr("request_id=20\n")));
  EXPECT_THAT(text, HasSubstr("ssd: cannot write"));
}

TEST_F(LogTest, T4MessagesThatAreMadeUpShareOneLimit) {
  const auto sink = Open({.burst = 2, .per_second = 1e-6});
  for (int i = 0; i < 5000; ++i) {
    std::string name;
    for (int left = i; left > 0; left /= 26) name.push_back(static_cast<char>('a' + left % 26));
    logger_->info("{}: ", name);
    logger_->info("{}: ", name);
    logger_->info("{}: ", name);
  }
  EXPECT_GT(sink->loss().limited, 13'000u);
}

TEST_F(LogTest, WhatIsQueuedAtTheEndIsWritten) {
  auto sink = Open({.at_exit = kLong});
  for (int i = 0; i < 100; ++i) logger_->info("last {}", i);
  logger_.reset();
  sink.reset();
  EXPECT_THAT(Read(), HasSubstr("last 99\n"));
}

TEST(LogMessageTest, AMessageIsItsWordsBeforeTheFirstNumber) {
  EXPECT_EQ(daemon::MessageOf("acquire HIT kind=LCP"), "acquire HIT kind");
  EXPECT_EQ(daemon::MessageOf("stopping on SIGTERM: up to 30 s"), "stopping on SIGTERM: up to ");
  EXPECT_EQ(daemon::MessageOf(""), "");
  EXPECT_EQ(daemon::MessageOf(std::string(100, 'x')).size(), 48u);
}

}  // namespace
}  // namespace prefixd::testing
