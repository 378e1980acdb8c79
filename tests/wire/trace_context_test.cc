// traceparent and tracestate, by the examples and rules of https://www.w3.org/TR/trace-context/.
#include "wire/trace_context.h"

#include <gtest/gtest.h>

#include <string>

#include "base/bytes.h"

namespace prefixd::wire {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kSpan = "00f067aa0ba902b7";
const std::string kExample = "00-" + kTrace + "-" + kSpan + "-01";

TEST(TraceContextTest, TheSpecificationsExampleIsRead) {
  const std::optional<TraceContext> context = ParseTraceparent(kExample);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(base::ToHex(context->trace_id), kTrace);
  EXPECT_EQ(base::ToHex(context->span_id), kSpan);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(Traceparent(*context), kExample);
}

TEST(TraceContextTest, OnlyTheLowestFlagSaysSampled) {
  const auto sampled = [](const char* flags) {
    return ParseTraceparent("00-" + kTrace + "-" + kSpan + "-" + flags)->sampled;
  };
  EXPECT_FALSE(sampled("00"));
  EXPECT_FALSE(sampled("fe"));
  EXPECT_TRUE(sampled("03"));
  EXPECT_TRUE(sampled("ff"));
}

TEST(TraceContextTest, ALaterVersionIsReadAsFarAsItIsKnown) {
  const std::string body = "-" + kTrace + "-" + kSpan + "-01";
  EXPECT_TRUE(ParseTraceparent("01" + body).has_value());
  EXPECT_TRUE(ParseTraceparent("cc" + body + "-what-the-future-will-be-like").has_value());
  EXPECT_TRUE(ParseTraceparent("fe" + body + "-").has_value());
  EXPECT_FALSE(ParseTraceparent("cc" + body + ".what-the-future-will-be-like").has_value());
  EXPECT_FALSE(ParseTraceparent("cc" + body + "01").has_value());
}

TEST(TraceContextTest, WhatIsNotWellFormedIsAsIfItWereNotThere) {
  const std::string zeros32(32, '0'), zeros16(16, '0');
  const std::string bad[] = {
      "",
      "00",
      "ff-" + kTrace + "-" + kSpan + "-01",
      "00-" + zeros32 + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + zeros16 + "-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kSpan + "-01",
      "00-" + kTrace + "-00F067AA0BA902B7-01",
      "0A-" + kTrace + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan + "-0A",
      "00-" + kTrace + "-" + kSpan + "-1",
      "00-" + kTrace + "-" + kSpan + "-01-",
      "00-" + kTrace + "-" + kSpan + "-01-more",
      "00-" + kTrace + "-" + kSpan + "-011",
      "00-" + kTrace.substr(1) + "-" + kSpan + "-01x",
      "00-" + kTrace + "x" + kSpan + "-01-",
      "00-" + kTrace + "_" + kSpan + "-01",
      "00_" + kTrace + "-" + kSpan + "-01",
      "00-" + kTrace + "-" + kSpan + "_01",
      "00-g" + kTrace.substr(1) + "-" + kSpan + "-01",
      " " + kExample,
      kExample + " ",
      kExample + std::string(1, '\0'),
      std::string("\0", 1) + kExample.substr(1),
      std::string(55, '-'),
      std::string(55, '0'),
      std::string(100'000, '0'),
      kExample + "," + kExample,
  };
  for (const std::string& text : bad) EXPECT_FALSE(ParseTraceparent(text).has_value()) << text;
}

TEST(TraceContextTest, EveryPrefixAndEveryChangedCharacterIsReadOrRefusedWithoutHarm) {
  for (size_t length = 0; length < kExample.size(); ++length)
    EXPECT_FALSE(ParseTraceparent(kExample.substr(0, length)).has_value()) << length;
  for (size_t at = 0; at < kExample.size(); ++at) {
    for (int c = 0; c < 256; ++c) {
      std::string text = kExample;
      text[at] = static_cast<char>(c);
      const std::optional<TraceContext> context = ParseTraceparent(text);
      if (context.has_value() && text.starts_with("00")) {
        EXPECT_EQ(Traceparent(*context).substr(0, 53), text.substr(0, 53));
      }
    }
  }
}

TEST(TraceContextTest, AListOfKeysAndValuesIsATracestate) {
  for (const char* good : {"rojo=00f067aa0ba902b7", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
                           "fw529a3039@dt=FfAuzg~ 1", "a=1, b=2,\t c=3", "a=1,,b=2", "0a-_*/=x"}) {
    EXPECT_TRUE(IsTracestate(good)) << good;
  }
  std::string most = "a0=1";
  for (int i = 1; i < 32; ++i) most += ",a" + std::to_string(i) + "=1";
  EXPECT_TRUE(IsTracestate(most));
  const std::string bad[] = {"",
                             ",",
                             "rojo",
                             "=1",
                             "a=",
                             "A=1",
                             "_a=1",
                             "a b=1",
                             "a=b=c",
                             "a=\x7f",
                             "a=\xc3\xa9",
                             std::string("a=\0b", 4),
                             most + ",a32=1",
                             std::string(257, 'a') + "=1",
                             "a=" + std::string(257, 'a'),
                             "a=" + std::string(255, 'a') + ",b=" + std::string(255, 'b')};
  for (const std::string& text : bad) EXPECT_FALSE(IsTracestate(text)) << text;
}

}  // namespace
}  // namespace prefixd::wire
