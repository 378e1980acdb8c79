// What an exporter of spans does while its collector answers, fails, or is not there.
#include "daemon/tracing/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <chrono>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "daemon/tracing/tracer.h"
#include "tests/daemon/played_collector.h"

namespace prefixd::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using testing::kHttpOk;
using testing::PlayedCollector;

// Fails fast: the pauses are too short to notice, but for what a test sets.
ExporterOptions To(const CollectorAddress& collector) {
  return {.collector = {.address = collector, .headers = "X-Scope-OrgID: 7\r\n"},
          .resource = {.version = "1.2.3", .instance = "abc", .host = "here"},
          .interval = milliseconds(5),
          .timeout = milliseconds(10'000),
          .first_pause = milliseconds(1),
          .longest_pause = milliseconds(4),
          .tries = 3};
}

Spans OneSpan(const std::string& name) {
  Spans spans(1);
  spans[0].name = name;
  spans[0].kind = Span::Kind::kServer;
  spans[0].trace_id = NewTraceId();
  spans[0].id = NewSpanId();
  spans[0].begin_ns = 1'000;
  spans[0].end_ns = 2'000;
  return spans;
}

// Waits until `done` of the totals.
template <typename Done>
Exporter::Totals WaitFor(const Exporter& exporter, const Done& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done(exporter.totals()) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  return exporter.totals();
}

TEST(ExporterTest, ACollectorGetsWhatWasTakenAsOtlpOverHttp) {
  PlayedCollector collector;
  Exporter exporter(To(collector.address()));
  Spans spans = OneSpan("prefixd.v1.PrefixCache/Acquire");
  spans[0].parent = NewSpanId();
  spans[0].parent_is_remote = true;
  spans[0].state = "rojo=1";
  spans[0].attributes = {{"rpc.system", std::string("grpc")}, {"n", int64_t{-7}}};
  spans[0].failed = true;
  spans[0].error = "no room";
  const Span sent = spans[0];
  exporter.Take(std::move(spans));
  const std::vector<otlp::Span> came =
      collector.WaitFor([](const auto& all) { return !all.empty(); });
  ASSERT_EQ(came.size(), 1u);
  EXPECT_EQ(came[0].trace_id(), base::AsText(sent.trace_id));
  EXPECT_EQ(came[0].span_id(), base::AsText(sent.id));
  EXPECT_EQ(came[0].parent_span_id(), base::AsText(sent.parent));
  EXPECT_EQ(came[0].trace_state(), "rojo=1");
  EXPECT_EQ(came[0].name(), "prefixd.v1.PrefixCache/Acquire");
  EXPECT_EQ(came[0].kind(), otlp::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(came[0].start_time_unix_nano(), 1'000u);
  EXPECT_EQ(came[0].end_time_unix_nano(), 2'000u);
  EXPECT_EQ(came[0].flags(), 0x301u);  // sampled; the parent is known to be remote
  EXPECT_EQ(came[0].status().code(), otlp::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(came[0].status().message(), "no room");
  EXPECT_EQ(testing::AttributeOf(came[0], "rpc.system"), "grpc");
  EXPECT_EQ(testing::AttributeOf(came[0], "n"), "-7");
  const otlp::ResourceSpans resource = collector.resources().at(0);
  EXPECT_EQ(resource.resource().attributes(0).key(), "service.name");
  EXPECT_EQ(resource.resource().attributes(0).value().string_value(), "prefixd");
  EXPECT_EQ(resource.scope_spans(0).scope().name(), "prefixd");
  const std::string head = collector.heads().at(0);
  EXPECT_TRUE(head.starts_with("POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:")) << head;
  EXPECT_THAT(head, HasSubstr("\r\nContent-Type: application/x-protobuf\r\n"));
  EXPECT_THAT(head, HasSubstr("\r\nX-Scope-OrgID: 7"));
  const Exporter::Totals totals = WaitFor(exporter, [](const auto& t) { return t.exported > 0; });
  EXPECT_EQ(totals.exported, 1u);
  EXPECT_EQ(totals.dropped, 0u);
  EXPECT_EQ(totals.failures, 0u);
}

TEST(ExporterTest, AnAnswerOf503IsTriedAgainAfterTheTimeThatItAsksFor) {
  std::vector<base::Deadline> at(2);
  PlayedCollector collector([&](size_t number) -> std::string {
    if (number < 2) at[number] = std::chrono::steady_clock::now();
    return number == 0 ? "HTTP/1.1 503 No\r\nretry-after: 1\r\nContent-Length: 0\r\n\r\n" : kHttpOk;
  });
  ExporterOptions options = To(collector.address());
  options.longest_pause = milliseconds(60'000);
  Exporter exporter(options);
  exporter.Take(OneSpan("a"));
  const Exporter::Totals totals = WaitFor(exporter, [](const auto& t) { return t.exported > 0; });
  EXPECT_EQ(totals.exported, 1u);
  EXPECT_EQ(totals.failures, 1u);
  EXPECT_EQ(totals.dropped, 0u);
  EXPECT_GE(at[1] - at[0], milliseconds(1'000));
}

TEST(ExporterTest, ACollectorThatAsksForAnHourWaitsNoLongerThanTheLongestPause) {
  PlayedCollector collector([](size_t number) -> std::string {
    return number == 0 ? "HTTP/1.1 429 No\r\nRetry-After: 3600\r\n\r\n" : kHttpOk;
  });
  Exporter exporter(To(collector.address()));
  exporter.Take(OneSpan("a"));
  EXPECT_EQ(WaitFor(exporter, [](const auto& t) { return t.exported > 0; }).exported, 1u);
}

TEST(ExporterTest, AnAnswerThatCannotBeHelpedDropsItsSpansAndTheNextOnesGo) {
  PlayedCollector collector([](size_t number) -> std::string {
    return number == 0 ? "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" : kHttpOk;
  });
  Exporter exporter(To(collector.address()));
  exporter.Take(OneSpan("a"));
  EXPECT_EQ(WaitFor(exporter, [](const auto& t) { return t.dropped > 0; }).failures, 1u);
  exporter.Take(OneSpan("b"));
  EXPECT_EQ(WaitFor(exporter, [](const auto& t) { return t.exported > 0; }).exported, 1u);
  EXPECT_EQ(collector.spans().at(0).name(), "b");
}

TEST(ExporterTest, WhatACollectorRejectsOfAMessageIsCountedAsDropped) {
  otlp::ExportTraceServiceResponse response;
  response.mutable_partial_success()->set_rejected_spans(2);
  const std::string body = response.SerializeAsString();
  PlayedCollector collector([&](size_t) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  });
  Exporter exporter(To(collector.address()));
  Spans spans = OneSpan("a");
  spans.push_back(spans[0]);
  spans.push_back(spans[0]);
  exporter.Take(std::move(spans));
  const Exporter::Totals totals = WaitFor(exporter, [](const auto& t) { return t.exported > 0; });
  EXPECT_EQ(totals.exported, 1u);
  EXPECT_EQ(totals.dropped, 2u);
}

TEST(ExporterTest, ACollectorThatIsDownLosesEachMessageAfterItsTries) {
  CollectorAddress nobody;
  {
    PlayedCollector collector;
    nobody = collector.address();
  }
  Exporter exporter(To(nobody));
  exporter.Take(OneSpan("a"));
  const Exporter::Totals totals = WaitFor(exporter, [](const auto& t) { return t.dropped > 0; });
  EXPECT_EQ(totals.dropped, 1u);
  EXPECT_EQ(totals.failures, 3u);
}

TEST(ExporterTest, AnswersThatAreNoHttpAreFailures) {
  for (const std::string& answer :
       {std::string("SSH-2.0-x\r\n\r\n"), std::string("HTTP/1.1 \r\n\r\n"),
        std::string("HTTP/1.1 2xx OK\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\n"),
        std::string(100'000, 'x')}) {
    PlayedCollector collector([&](size_t) { return answer; });
    Exporter exporter(To(collector.address()));
    exporter.Take(OneSpan("a"));
    EXPECT_EQ(WaitFor(exporter, [](const auto& t) { return t.dropped > 0; }).exported, 0u)
        << answer.substr(0, 20);
  }
}

TEST(ExporterTest, OfAnAnswerWithoutAnEndNoMoreIsReadThanHeadersMayHave) {
  PlayedCollector collector(
      [](size_t) { return "HTTP/1.1 200 OK\r\n" + std::string(100'000, 'x'); });
  const StopSignal stop;
  const absl::StatusOr<HttpReply> reply =
      PostProtobuf({.address = collector.address()}, "",
                   std::chrono::steady_clock::now() + std::chrono::seconds(60), stop);
  EXPECT_EQ(reply.status().message(), "the headers of the answer do not end");
}

// Of the calling thread.
std::chrono::nanoseconds CpuTime() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

TEST(ExporterTest, ACollectorThatAnswersAndReadsNoMoreIsWaitedForWithoutWork) {
  const base::Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length);
  base::Descriptor answering;
  std::thread collector([&] {
    answering = base::Descriptor(::accept(listener.get(), nullptr, nullptr));
    ::send(answering.get(), "x", 1, MSG_NOSIGNAL);
  });
  const StopSignal stop;
  const HttpServer server{.address = {"127.0.0.1", ntohs(address.sin_port), "/"}};
  const std::string body(64 << 20, 'x');  // more than sockets take
  const std::chrono::nanoseconds before = CpuTime();
  const absl::StatusOr<HttpReply> reply =
      PostProtobuf(server, body, std::chrono::steady_clock::now() + milliseconds(2'000), stop);
  EXPECT_LT(CpuTime() - before, milliseconds(500));
  EXPECT_EQ(reply.status().message(), "send: not in time");
  collector.join();
}

TEST(ExporterTest, AFullQueueDropsAndCountsWhileTheCollectorHangs) {
  PlayedCollector collector([](size_t) { return std::string(); });
  ExporterOptions options = To(collector.address());
  options.queue_calls = 8;
  options.batch_spans = 1;
  options.timeout = milliseconds(600'000);
  options.stop_patience = milliseconds(10);
  Exporter exporter(options);
  exporter.Take(OneSpan("the one that hangs"));
  collector.WaitForRequests(1);
  for (int i = 0; i < 20; ++i) exporter.Take(OneSpan("more"));
  EXPECT_EQ(exporter.totals().dropped, 12u);
  exporter.Stop();
  EXPECT_EQ(exporter.totals().dropped, 21u);  // what waited, and what hung
}

TEST(ExporterTest, AQueueThatFillsIsSentBeforeTheNextLook) {
  PlayedCollector collector;
  ExporterOptions options = To(collector.address());
  options.queue_calls = 8;
  options.interval = milliseconds(600'000);
  Exporter exporter(options);
  for (int i = 0; i < 4; ++i) exporter.Take(OneSpan("a"));
  EXPECT_EQ(collector.WaitFor([](const auto& all) { return all.size() == 4; }).size(), 4u);
}

TEST(ExporterTest, AStopSendsWhatIsLeft) {
  PlayedCollector collector;
  ExporterOptions options = To(collector.address());
  options.interval = milliseconds(600'000);
  options.stop_patience = milliseconds(60'000);
  Exporter exporter(options);
  exporter.Take(OneSpan("a"));
  exporter.Stop();
  EXPECT_EQ(exporter.totals().exported, 1u);
  EXPECT_EQ(collector.spans().size(), 1u);
  exporter.Take(OneSpan("too late"));
  EXPECT_EQ(exporter.totals().dropped, 1u);
}

// A minute would be the message's own time.
TEST(ExporterTest, ACollectorThatHangsDelaysAStopByItsPatienceAlone) {
  PlayedCollector collector([](size_t) { return std::string(); });
  ExporterOptions options = To(collector.address());
  options.timeout = milliseconds(60'000);
  options.stop_patience = milliseconds(100);
  Exporter exporter(options);
  exporter.Take(OneSpan("a"));
  collector.WaitForRequests(1);
  exporter.Take(OneSpan("b"));
  const auto begun = std::chrono::steady_clock::now();
  exporter.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_EQ(exporter.totals().dropped, 2u);
}

// A minute would be the pause that it asks for.
TEST(ExporterTest, APauseEndsWithAStop) {
  PlayedCollector collector([](size_t) { return "HTTP/1.1 503 No\r\nRetry-After: 60\r\n\r\n"; });
  ExporterOptions options = To(collector.address());
  options.longest_pause = milliseconds(60'000);
  options.stop_patience = milliseconds(100);
  Exporter exporter(options);
  exporter.Take(OneSpan("a"));
  WaitFor(exporter, [](const auto& t) { return t.failures > 0; });
  PlayedCollector other;  // its round trip is time for the thread to begin the pause
  Exporter another(To(other.address()));
  another.Take(OneSpan("b"));
  other.WaitForRequests(1);
  const auto begun = std::chrono::steady_clock::now();
  exporter.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_EQ(exporter.totals().dropped, 1u);
}

TEST(ExporterTest, ANameThatNobodyKnowsIsAFailureAndDelaysNoStop) {
  Exporter exporter(To({.host = "no-such-host.invalid", .port = 4318, .path = "/v1/traces"}));
  exporter.Take(OneSpan("a"));
  const auto begun = std::chrono::steady_clock::now();
  exporter.Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_EQ(exporter.totals().exported, 0u);
  EXPECT_EQ(exporter.totals().dropped, 1u);
}

TEST(BoundedQueueTest, ManyThreadsLoseNothingAndAFullQueueTakesNothing) {
  BoundedQueue<int> queue(64);
  std::atomic<int> sum{0}, taken{0};
  constexpr int kThreads = 4, kEach = 20'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 1; i <= kEach; ++i) {
        while (!queue.TryPush(int{i})) std::this_thread::yield();
      }
    });
  }
  for (int value = 0; taken < kThreads * kEach;) {
    if (!queue.TryPop(&value)) continue;
    sum += value;
    ++taken;
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, kThreads * (kEach / 2 * (kEach + 1)));
  int pushed = 0;
  while (queue.TryPush(1)) ++pushed;
  EXPECT_EQ(pushed, 64);
}

}  // namespace
}  // namespace prefixd::daemon
