// The spans of loads, by the events that sessions are told.
#include "daemon/tracing/load_traces.h"

#include <gtest/gtest.h>

#include <utility>

namespace prefixd::daemon {
namespace {

using Kind = cache::SessionEvent::Kind;

cache::SessionEvent Ready(uint64_t lease, uint32_t group, Kind kind = Kind::kLeaseReady) {
  cache::SessionEvent event;
  event.kind = kind;
  event.lease = block::LeaseId{lease};
  event.group = group;
  return event;
}

class LoadTracesTest : public ::testing::Test {
 protected:
  void Begin(uint64_t lease, std::vector<uint32_t> groups) {
    Span span;
    span.name = std::to_string(lease);
    span.begin_ns = 1'000'000;
    loads_.Begin(block::LeaseId{lease}, std::move(groups), std::chrono::steady_clock::now(), span);
  }

  Spans done_;
  LoadTraces loads_{[this](Spans spans) {
    for (Span& span : spans) done_.push_back(std::move(span));
  }};
};

TEST_F(LoadTracesTest, ALoadIsDoneWithTheLastOfItsGroups) {
  Begin(7, {0, 2});
  loads_.Note(Ready(7, 0));
  loads_.Note(Ready(8, 2));  // of another lease
  EXPECT_TRUE(done_.empty());
  loads_.Note(Ready(7, 2));
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_EQ(done_[0].name, "7");
  EXPECT_GE(done_[0].end_ns, done_[0].begin_ns);
  EXPECT_FALSE(done_[0].failed);
  loads_.Note(Ready(7, 2));
  EXPECT_EQ(done_.size(), 1u);
}

TEST_F(LoadTracesTest, AnEventThatComesBeforeTheAnswerCounts) {
  loads_.AcquireBegins();
  loads_.Note(Ready(7, 0));
  loads_.Note(Ready(7, 1));
  Begin(7, {0, 1});
  loads_.AcquireEnds();
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_EQ(done_[0].end_ns, done_[0].begin_ns);
}

TEST_F(LoadTracesTest, WithoutATracedAcquireNoEventIsKept) {
  loads_.Note(Ready(7, 0));
  Begin(7, {0});
  EXPECT_TRUE(done_.empty());
}

TEST_F(LoadTracesTest, APageThatDoesNotComeEndsTheLoadAsAnError) {
  Begin(7, {0, 1, 2});
  loads_.Note(Ready(7, 1, Kind::kLeaseFailed));
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_TRUE(done_[0].failed);
}

TEST_F(LoadTracesTest, BeyondTheMostTheOldestLoadIsForgotten) {
  for (uint64_t lease = 0; lease <= LoadTraces::kMostLoads; ++lease) Begin(lease, {0});
  loads_.Note(Ready(0, 0));
  EXPECT_TRUE(done_.empty());
  loads_.Note(Ready(1, 0));
  loads_.Note(Ready(LoadTraces::kMostLoads, 0));
  EXPECT_EQ(done_.size(), 2u);
}

}  // namespace
}  // namespace prefixd::daemon
