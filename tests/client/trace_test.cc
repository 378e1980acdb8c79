// SetTrace: the calls of a thread, and what the library's threads do for them, belong to its trace.
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "base/bytes.h"
#include "daemon/tracing/tracer.h"
#include "tests/client/daemon.h"
#include "tests/daemon/played_collector.h"

namespace prefixd {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
std::string Parent(const std::string& span, const char* flags = "-01") {
  return "00-" + kTrace + "-" + span + flags;
}

class ClientTraceTest : public ::testing::TestWithParam<bool> {  // with a shared arena
 protected:
  ClientTraceTest()
      : tracer_({.exporter = {.collector = {.address = collector_.address()},
                              .interval = std::chrono::milliseconds(5),
                              .stop_patience = std::chrono::seconds(60)}}),
        daemon_(std::in_place, directory_.socket(),
                DaemonOptions{.arena = GetParam() ? arena_.path() : "", .tracer = &tracer_}),
        client_({.address = directory_.address(), .use_arena = GetParam()}),
        space_(client_.OpenSpace(spec_)) {
    EXPECT_TRUE(space_.ok()) << space_.status.message;
  }
  ~ClientTraceTest() override { EXPECT_TRUE(SetTrace("").ok()); }
  // The parents of the spans of calls of this method. The daemon is gone afterwards: a Fetch ends
  // after its last page, and its span with it.
  std::vector<std::string> ParentsOf(const std::string& method) {
    daemon_.reset();
    tracer_.Stop();  // sends what is left
    std::vector<std::string> parents;
    for (const otlp::Span& span : collector_.spans()) {
      if (span.name() != "prefixd.v1.PrefixCache/" + method) continue;
      EXPECT_EQ(base::ToHex(base::AsBytes(span.trace_id())), kTrace);
      parents.push_back(base::ToHex(base::AsBytes(span.parent_span_id())));
    }
    return parents;
  }

  using Parents = std::vector<std::string>;
  const SpaceSpec spec_ = SmallSpace(MlxAffine(8, 64, 4, 64, Dtype::kF16));
  const std::vector<uint32_t> tokens_ = Tokens(215, 1);
  const TempDirectory directory_;
  const ArenaPath arena_;
  testing::PlayedCollector collector_;
  daemon::Tracer tracer_;
  std::optional<Daemon> daemon_;
  Client client_;
  Result<Space> space_;
};

TEST_P(ClientTraceTest, TheCallsOfAThreadCarryTheTraceThatItNamedLast) {
  Sequence before = space_.value().Begin(tokens_);
  ASSERT_TRUE(SetTrace(Parent("000000000000000a"), "a=1").ok());
  Sequence first = space_.value().Begin(tokens_);
  std::thread([&] { Sequence elsewhere = space_.value().Begin(tokens_); }).join();
  ASSERT_TRUE(SetTrace(Parent("000000000000000b")).ok());
  Sequence second = space_.value().Begin(tokens_);
  ASSERT_TRUE(SetTrace(Parent("000000000000000c", "-00")).ok());
  Sequence unsampled = space_.value().Begin(tokens_);
  ASSERT_TRUE(SetTrace("").ok());
  Sequence after = space_.value().Begin(tokens_);
  EXPECT_EQ(ParentsOf("Acquire"), (Parents{"000000000000000a", "000000000000000b"}));
  EXPECT_EQ(collector_.spans().at(0).trace_state(), "a=1");
}

TEST_P(ClientTraceTest, WhatIsStoredAndLoadedInTheBackgroundBelongsToTheCallThatAskedForIt) {
  ASSERT_TRUE(SetTrace(Parent("000000000000000a")).ok());
  Sequence seq = space_.value().Begin(tokens_);
  AppendTokens(seq, spec_, tokens_, 0, 215);
  ASSERT_TRUE(seq.StartCommit({.sequence_end = true}));
  ASSERT_TRUE(SetTrace("").ok());
  ASSERT_TRUE(seq.FinishCommit().ok());
  ASSERT_TRUE(SetTrace(Parent("000000000000000b")).ok());
  Sequence hit = space_.value().Begin(tokens_);
  ASSERT_TRUE(SetTrace("").ok());
  EXPECT_EQ(hit.WaitAll(), 215u);
  EXPECT_EQ(ParentsOf(GetParam() ? "Commit" : "Put"), Parents{"000000000000000a"});
  EXPECT_EQ(ParentsOf("Fetch"), GetParam() ? Parents{} : Parents{"000000000000000b"});
}

TEST_P(ClientTraceTest, HeadersThatAreNotWellFormedAreRefusedAndNoCallSuffers) {
  ASSERT_TRUE(SetTrace(Parent("000000000000000a")).ok());
  for (const std::string& bad :
       {std::string("nonsense"), Parent("0000000000000000"), Parent("000000000000000a") + "\n",
        Parent("000000000000000A"), std::string("\0", 1), std::string(10'000, '0')}) {
    EXPECT_EQ(SetTrace(bad).code, StatusCode::kInvalidArgument) << bad;
    EXPECT_TRUE(space_.value().Begin(tokens_).match().status.ok());
  }
  ASSERT_TRUE(SetTrace(Parent("000000000000000b"), "bad\r\nstate").ok());
  EXPECT_TRUE(space_.value().Begin(tokens_).match().status.ok());
  EXPECT_EQ(ParentsOf("Acquire"), Parents{"000000000000000b"});
  EXPECT_EQ(collector_.spans().at(0).trace_state(), "");
}

INSTANTIATE_TEST_SUITE_P(Arena, ClientTraceTest, ::testing::Bool());

}  // namespace
}  // namespace prefixd
