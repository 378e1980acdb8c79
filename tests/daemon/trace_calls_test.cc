// The spans of calls over a real socket, as a collector decodes them.
#include <algorithm>
#include <chrono>
#include <set>

#include "daemon/tracing/call_trace.h"
#include "daemon/tracing/tracer.h"
#include "tests/daemon/fixture.h"
#include "tests/daemon/played_collector.h"
#include "tests/daemon/program_fixture.h"

namespace prefixd::testing {
namespace {

using ::testing::HasSubstr;
using SpanList = std::vector<otlp::Span>;

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParentId[] = "00f067aa0ba902b7";

std::string Hex(const std::string& bytes) { return base::ToHex(base::AsBytes(bytes)); }

// A call of the engine's span kParentId.
class TracedContext : public Context {
 public:
  explicit TracedContext(const std::string& flags = "01", const std::string& state = "") {
    AddMetadata("traceparent", absl::StrCat("00-", kTraceId, "-", kParentId, "-", flags));
    if (!state.empty()) AddMetadata("tracestate", state);
  }
};

class TraceCallsTest : public DaemonTest {
 protected:
  void SetUp() override {
    trace_ = std::make_unique<daemon::Tracer>(
        daemon::Tracer::Options{.exporter = {.collector = {.address = collector_.address()},
                                             .interval = std::chrono::milliseconds(5),
                                             .stop_patience = std::chrono::seconds(60)},
                                .root_ratio = root_ratio_});
    tracer_ = trace_.get();
    DaemonTest::SetUp();
    ASSERT_TRUE(worker_->Store(identity_, space_, tokens_, &stored_).ok());
  }
  void TearDown() override {
    DaemonTest::TearDown();
    worker_.reset();
    server_.reset();
    cache_.reset();
  }
  // Every span of the calls that were made: a stop sends what is left.
  SpanList Spans() {
    trace_->Stop();
    return collector_.spans();
  }
  static SpanList Named(const SpanList& spans, const std::string& name) {
    SpanList named;
    std::ranges::copy_if(spans, std::back_inserter(named),
                         [&](const otlp::Span& span) { return span.name() == name; });
    return named;
  }
  static otlp::Span TheOne(const SpanList& spans, const std::string& name) {
    const SpanList named = Named(spans, name);
    EXPECT_EQ(named.size(), 1u) << name;
    return named.empty() ? otlp::Span() : named.front();
  }

  const Tokens tokens_ = SomeTokens(1, 53);
  double root_ratio_ = 0;
  v1::CommitReply stored_;
  PlayedCollector collector_;
  std::unique_ptr<daemon::Tracer> trace_;
};

void ExpectWithin(const otlp::Span& child, const otlp::Span& parent) {
  EXPECT_EQ(child.trace_id(), parent.trace_id()) << child.name();
  EXPECT_EQ(child.parent_span_id(), parent.span_id()) << child.name();
  EXPECT_EQ(child.kind(), otlp::Span::SPAN_KIND_INTERNAL) << child.name();
  EXPECT_LE(parent.start_time_unix_nano(), child.start_time_unix_nano()) << child.name();
  EXPECT_LE(child.start_time_unix_nano(), child.end_time_unix_nano()) << child.name();
  EXPECT_LE(child.end_time_unix_nano(), parent.end_time_unix_nano()) << child.name();
}

TEST_F(TraceCallsTest, ACallIsTheExemplarOfItsLatency) {
  TracedContext context("01", "");
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->cache->Acquire(&context, worker_->AcquireOf(space_, tokens_), &reply).ok());
  const otlp::Span call = TheOne(Spans(), "prefixd.v1.PrefixCache/Acquire");
  const double took =
      static_cast<double>(call.end_time_unix_nano() - call.start_time_unix_nano()) * 1e-9;
  const auto exemplar = trace_->exemplars().Find("acquire", took - 1e-9, took + 1e-9);
  ASSERT_TRUE(exemplar.has_value());
  EXPECT_EQ(base::ToHex(exemplar->trace_id), kTraceId);
  EXPECT_EQ(base::ToHex(exemplar->span_id), Hex(call.span_id()));
  EXPECT_NEAR(exemplar->unix_s, static_cast<double>(call.end_time_unix_nano()) * 1e-9, 1e-3);
  EXPECT_FALSE(trace_->exemplars().Find("commit", -1, 1e9).has_value()) << "it was not traced";
}

TEST_F(TraceCallsTest, AnAcquireStandsBelowTheEnginesSpanAndItsPhasesBelowIt) {
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  v1::AcquireRequest request = worker_->AcquireOf(space_, tokens_);
  request.mutable_items(0)->set_request_id("chat-17");
  TracedContext context("01", "rojo=00f067aa0ba902b7,congo=t61");
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->cache->Acquire(&context, request, &reply).ok());
  const SpanList spans = Spans();
  const otlp::Span call = TheOne(spans, "prefixd.v1.PrefixCache/Acquire");
  EXPECT_EQ(Hex(call.trace_id()), kTraceId);
  EXPECT_EQ(Hex(call.parent_span_id()), kParentId);
  EXPECT_EQ(call.trace_state(), "rojo=00f067aa0ba902b7,congo=t61");
  EXPECT_EQ(call.kind(), otlp::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(call.flags(), 0x301u);
  EXPECT_GE(call.start_time_unix_nano(),
            static_cast<uint64_t>(std::chrono::nanoseconds(before).count()));
  EXPECT_EQ(AttributeOf(call, "rpc.system"), "grpc");
  EXPECT_EQ(AttributeOf(call, "rpc.service"), "prefixd.v1.PrefixCache");
  EXPECT_EQ(AttributeOf(call, "rpc.method"), "Acquire");
  EXPECT_EQ(AttributeOf(call, "rpc.grpc.status_code"), "0");
  EXPECT_EQ(AttributeOf(call, "prefixd.request_id"), "chat-17");
  EXPECT_EQ(AttributeOf(call, "prefixd.prompt_tokens"), "53");
  EXPECT_EQ(AttributeOf(call, "prefixd.matched_tokens"), "53");
  EXPECT_EQ(AttributeOf(call, "prefixd.cached_tokens"), "53");
  EXPECT_EQ(AttributeOf(call, "prefixd.match"), "exact");
  const otlp::Span match = TheOne(spans, "prefixd.match"), room = TheOne(spans, "prefixd.room");
  ExpectWithin(match, call);
  ExpectWithin(room, call);
  EXPECT_LE(match.end_time_unix_nano(), room.start_time_unix_nano());
  EXPECT_EQ(spans.size(), 3u) << "nothing else was traced, and nothing was waited for";
}

TEST_F(TraceCallsTest, ACallWhoseCallerDoesNotSampleOrIsNotWellFormedIsServedAndNotTraced) {
  v1::AcquireReply reply;
  TracedContext unsampled("00");
  ASSERT_TRUE(
      worker_->cache->Acquire(&unsampled, worker_->AcquireOf(space_, tokens_), &reply).ok());
  for (const std::string& parent :
       {std::string("nonsense"), std::string("ff-") + kTraceId + "-" + kParentId + "-01",
        std::string("00-") + std::string(32, '0') + "-" + kParentId + "-01",
        std::string(4000, '0')}) {
    Context context;
    context.AddMetadata("traceparent", parent);
    reply.Clear();
    ASSERT_TRUE(
        worker_->cache->Acquire(&context, worker_->AcquireOf(space_, tokens_), &reply).ok());
    EXPECT_EQ(reply.answers(0).restorable_tokens(), 53u);
  }
  TracedContext twice;
  twice.AddMetadata("traceparent", absl::StrCat("00-", kTraceId, "-", kParentId, "-01"));
  ASSERT_TRUE(worker_->cache->Acquire(&twice, worker_->AcquireOf(space_, tokens_), &reply).ok());
  EXPECT_TRUE(Spans().empty());
}

TEST_F(TraceCallsTest, ATracestateThatIsNotWellFormedIsLeftOut) {
  TracedContext context("01", "no list");
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->cache->Acquire(&context, worker_->AcquireOf(space_, tokens_), &reply).ok());
  EXPECT_EQ(TheOne(Spans(), "prefixd.v1.PrefixCache/Acquire").trace_state(), "");
}

TEST_F(TraceCallsTest, APutAndAFetchAreOneSpanEachAndTheCommitIsAPhase) {
  const Tokens other = SomeTokens(2, 40);
  v1::ReserveReply plan;
  ASSERT_TRUE(worker_->Reserve(space_, other, &plan).ok());
  TracedContext putting;
  v1::CommitReply commit;
  auto writer = worker_->cache->Put(&putting, &commit);
  for (const v1::PutChunk& chunk : worker_->ChunksOf(identity_, other, plan, true))
    writer->Write(chunk);
  writer->WritesDone();
  ASSERT_TRUE(writer->Finish().ok());
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->Acquire(space_, other, &reply).ok());
  TracedContext fetching;
  v1::FetchRequest request;
  request.set_session(worker_->session);
  request.set_lease(reply.answers(0).lease());
  auto reader = worker_->cache->Fetch(&fetching, request);
  for (v1::FetchChunk chunk; reader->Read(&chunk);) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  const SpanList spans = Spans();
  const otlp::Span put = TheOne(spans, "prefixd.v1.PrefixCache/Put");
  EXPECT_EQ(Hex(put.parent_span_id()), kParentId);
  EXPECT_EQ(AttributeOf(put, "prefixd.stored_tokens"), "40");
  ExpectWithin(TheOne(spans, "prefixd.commit"), put);
  EXPECT_EQ(Hex(TheOne(spans, "prefixd.v1.PrefixCache/Fetch").parent_span_id()), kParentId);
  EXPECT_EQ(spans.size(), 3u);
}

TEST_F(TraceCallsTest, ALoadFromSsdIsASpanThatEndsWhenItsLastGroupIsReadable) {
  ASSERT_EQ(cache_->Flush(std::chrono::steady_clock::now() + std::chrono::seconds(60)).dirty_bytes,
            0u);
  worker_.reset();
  server_.reset();
  cache_.reset();
  std::filesystem::remove(arena_path_);
  DaemonTest::SetUp();
  worker_->Detach();
  worker_->AttachArena();
  if (!worker_->attached.arena()) GTEST_SKIP() << worker_->attached.why_no_arena();
  EXPECT_FALSE(worker_->attached.direct_calls()) << "they would have no span";
  worker_->Open(identity_);
  TracedContext context;
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->cache->Acquire(&context, worker_->AcquireOf(space_, tokens_), &reply).ok());
  ASSERT_GT(reply.answers(0).ssd_bytes(), 0u);
  const SpanList spans =
      collector_.WaitFor([](const SpanList& all) { return !Named(all, "prefixd.load").empty(); });
  const otlp::Span call = TheOne(spans, "prefixd.v1.PrefixCache/Acquire");
  const otlp::Span load = TheOne(spans, "prefixd.load");
  EXPECT_EQ(load.trace_id(), call.trace_id());
  EXPECT_EQ(load.parent_span_id(), call.span_id());
  EXPECT_LE(TheOne(spans, "prefixd.room").end_time_unix_nano(), load.start_time_unix_nano());
  EXPECT_LE(load.start_time_unix_nano(), load.end_time_unix_nano());
  EXPECT_EQ(AttributeOf(load, "prefixd.ssd_bytes"), std::to_string(reply.answers(0).ssd_bytes()));
  EXPECT_EQ(load.status().code(), otlp::Status::STATUS_CODE_UNSET);
}

TEST_F(TraceCallsTest, WhatIsRefusedHasItsCodeAndFailsIfTheServerIsAtFault) {
  TracedContext mistaken;
  v1::AcquireReply reply;
  EXPECT_EQ(
      worker_->cache->Match(&mistaken, worker_->AcquireOf(99'999, tokens_), &reply).error_code(),
      grpc::StatusCode::NOT_FOUND);
  server_->BeginDrain(1'000);
  TracedContext late;
  v1::ReserveRequest request;
  request.set_session(worker_->session);
  wire::ToProto({space_}, {tokens_, {}}, request.mutable_sequence());
  v1::ReserveReply plan;
  EXPECT_EQ(worker_->cache->Reserve(&late, request, &plan).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  const SpanList spans = Spans();
  const otlp::Span match = TheOne(spans, "prefixd.v1.PrefixCache/Match");
  EXPECT_EQ(AttributeOf(match, "rpc.grpc.status_code"), "5");
  EXPECT_EQ(match.status().code(), otlp::Status::STATUS_CODE_UNSET);
  const otlp::Span reserve = TheOne(spans, "prefixd.v1.PrefixCache/Reserve");
  EXPECT_EQ(AttributeOf(reserve, "rpc.grpc.status_code"), "14");
  EXPECT_EQ(reserve.status().code(), otlp::Status::STATUS_CODE_ERROR);
  EXPECT_THAT(reserve.status().message(), HasSubstr("stopping"));
  server_.reset();
  Serve();
}

TEST_F(TraceCallsTest, ACallOfManyItemsHasAFewSpansAndOneSetOfAttributes) {
  v1::AcquireRequest request = worker_->AcquireOf(space_, tokens_);
  request.mutable_items(0)->set_request_id(std::string(256, 'r'));
  request.mutable_items(0)->set_reserve(true);
  while (request.items_size() < 16) *request.add_items() = request.items(0);
  TracedContext context;
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->cache->Acquire(&context, request, &reply).ok());
  const SpanList spans = Spans();
  EXPECT_EQ(spans.size(), 1u + daemon::CallTrace::kMostPhases);
  const otlp::Span call = TheOne(spans, "prefixd.v1.PrefixCache/Acquire");
  EXPECT_LE(call.attributes_size(), 15);
  EXPECT_EQ(AttributeOf(call, "prefixd.request_id"), std::string(256, 'r'));
}

class TraceAllTest : public TraceCallsTest {
 protected:
  TraceAllTest() { root_ratio_ = 1; }
};

TEST_F(TraceAllTest, ARatioOfOneTracesWhatComesWithoutATraceEachAsItsOwnRoot) {
  v1::AcquireReply reply;
  ASSERT_TRUE(worker_->Acquire(space_, tokens_, &reply).ok());
  TracedContext unsampled("00");  // has a trace, which is not to be sampled
  ASSERT_TRUE(
      worker_->cache->Acquire(&unsampled, worker_->AcquireOf(space_, tokens_), &reply).ok());
  const SpanList spans = Spans();
  const otlp::Span call = TheOne(spans, "prefixd.v1.PrefixCache/Acquire");
  EXPECT_EQ(call.parent_span_id(), "");
  EXPECT_EQ(call.trace_id().size(), 16u);
  EXPECT_NE(call.trace_id(), TheOne(spans, "prefixd.v1.PrefixCache/Put").trace_id());
  EXPECT_EQ(call.flags(), 0x101u);
}

class TracedProgramTest : public ProgramTest {
 protected:
  // Makes a traced Acquire and a traced Match that are refused.
  void CallTraced() {
    Worker worker(target());
    worker.Attach();
    v1::OpenSpaceReply space;
    ASSERT_TRUE(worker.OpenSpace(SmallIdentity(), &space).ok());
    TracedContext context;
    v1::AcquireReply reply;
    ASSERT_TRUE(
        worker.cache->Acquire(&context, worker.AcquireOf(space.space(), SomeTokens(1, 40)), &reply)
            .ok());
  }
  std::vector<std::string> ArgsTo(const PlayedCollector& collector) {
    return Plus(Args(), "--otlp-endpoint", daemon::ToString(collector.address()));
  }
};

TEST_F(TracedProgramTest, TheProgramSendsItsSpansAndCountsThem) {
  PlayedCollector collector;
  const pid_t pid = Start(Plus(ArgsTo(collector), "--slow-request", "1us"));
  ASSERT_TRUE(Serves()) << Log();
  CallTraced();
  const SpanList spans = collector.WaitFor([](const SpanList& all) { return all.size() >= 3; });
  ASSERT_EQ(spans.size(), 3u);
  const otlp::Resource resource = collector.resources().at(0).resource();
  std::set<std::string> keys;
  for (const otlp::KeyValue& attribute : resource.attributes()) keys.insert(attribute.key());
  EXPECT_EQ(keys, (std::set<std::string>{"service.name", "service.version", "service.instance.id",
                                         "host.name"}));
  Worker worker(target());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (worker.Counter("trace.spans_exported") < 3 &&
         std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_EQ(worker.Counter("trace.spans_exported"), 3u);
  EXPECT_THAT(Log(), HasSubstr("tracing: spans go to http://127.0.0.1:"));
  EXPECT_THAT(Log(), HasSubstr(absl::StrCat(" trace_id=", kTraceId, "\n")));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
}

// The two messages would have 10 s each.
TEST_F(TracedProgramTest, ACollectorThatHangsNeitherDelaysCallsNorAStopForLong) {
  PlayedCollector collector([](size_t) { return std::string(); });
  const pid_t pid = Start(ArgsTo(collector));
  ASSERT_TRUE(Serves()) << Log();
  CallTraced();
  collector.WaitForRequests(1);
  CallTraced();
  const auto begun = std::chrono::steady_clock::now();
  ::kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(15));
}

TEST_F(TracedProgramTest, AStopSendsTheSpansThatAreLeft) {
  PlayedCollector collector;
  const pid_t pid = Start(ArgsTo(collector));
  ASSERT_TRUE(Serves()) << Log();
  CallTraced();
  ::kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), daemon::kExitOk) << Log();
  EXPECT_EQ(collector.spans().size(), 3u);
}

}  // namespace
}  // namespace prefixd::testing
