#include "cache/counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace prefixd::cache {
namespace {

TEST(CountersTest, WhatThreadsCountedIsOneSum) {
  constexpr uint64_t kThreads = 20, kCounts = 1'000;  // more threads than shards
  Counters counters;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&counters, i] {
      for (uint64_t count = 0; count < kCounts; ++count) {
        counters.Add("one");
        counters.AddAll({{"two", 2}, {"own." + std::to_string(i), 1}});
        counters.Time("call", i < kThreads / 2 ? 1 : 1'000);
        counters.AddSecondsSaved(0.5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  constexpr uint64_t kAll = kThreads * kCounts;
  EXPECT_EQ(counters.value("one"), kAll);
  EXPECT_EQ(counters.value("two"), 2 * kAll);
  EXPECT_EQ(counters.value("own.7"), kCounts);
  EXPECT_EQ(counters.value("never"), 0u);

  block::Stats stats;
  counters.Export(&stats);
  EXPECT_EQ(stats.counters.size(), 2 + kThreads);
  EXPECT_TRUE(std::ranges::is_sorted(stats.counters, {}, &block::NamedCount::name));
  for (const block::NamedCount& count : stats.counters) {
    EXPECT_EQ(count.value, counters.value(count.name)) << count.name;
  }
  ASSERT_EQ(stats.latencies.size(), 1u);
  const block::LatencyHistogram& calls = stats.latencies.front().histogram;
  EXPECT_EQ(calls.count, kAll);
  EXPECT_EQ(calls.sum_us, kAll / 2 * 1'001);
  EXPECT_EQ(calls.buckets[0], kAll / 2);
  EXPECT_EQ(calls.buckets[9], kAll / 2);
  EXPECT_EQ(stats.seconds_saved, 0.5 * kAll);
}

}  // namespace
}  // namespace prefixd::cache
