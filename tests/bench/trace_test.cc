// What prefixd-bench trace is made of: reading traces, the simulation, the fit of a budget, and the
// cache itself against the simulation.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "bench/trace/file.h"
#include "bench/trace/player.h"
#include "bench/trace/simulation.h"
#include "ram/budget.h"
#include "tests/bench/shipped_trace.h"

namespace prefixd::bench {
namespace {

class TraceFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "prefixd-trace-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  absl::StatusOr<Trace> Read(const std::string& text) {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
    return ReadPacked(packed);
  }
  absl::StatusOr<Trace> ReadPacked(const std::string& packed) {
    const std::string path = folder_ + "/trace.zst";
    std::ofstream(path, std::ios::binary) << packed;
    return ReadTrace(path);
  }
  std::string folder_;
};

TEST_F(TraceFile, BlocksAreNumberedInOrderOfFirstUse) {
  const auto trace = Read(
      "{\"timestamp\": 500, \"hash_ids\": [46, 47]}\n"
      "{\"timestamp\": 800, \"hash_ids\": [46, 99]}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->unique, 3u);
  EXPECT_EQ(trace->references, (std::vector<TraceBlock>{0, 1, 0, 2}));
  EXPECT_EQ(trace->requests[1].at_ms, 300);
}

TEST_F(TraceFile, WhatIsNoTraceIsRefusedNamingTheLine) {
  const std::string good = "{\"timestamp\": 1, \"hash_ids\": [1, 2, 3]}\n";
  for (const std::string bad : {"[]", "{}", "{\"timestamp\": 1, \"hash_ids\": [\"a\"]}",
                                "{\"timestamp\": 1, \"hash_ids\": [1, 3]}"}) {  // 3 is below 2
    const auto trace = Read(good + bad + "\n");
    ASSERT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(trace.status().message().find("line 2"), absl::string_view::npos) << trace.status();
  }
  EXPECT_EQ(ReadPacked("no zstd").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Read("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadTrace(folder_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TraceFile, OneThatIsCutOffIsRefused) {
  std::string packed(1000, '\0');
  const std::string text = "{\"timestamp\": 1, \"hash_ids\": [1, 2, 3]}\n";
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  EXPECT_EQ(ReadPacked(packed.substr(0, packed.size() - 2)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

Trace TraceOf(const std::vector<std::vector<TraceBlock>>& paths, uint64_t unique) {
  Trace trace;
  trace.unique = unique;
  for (const auto& path : paths) {
    trace.requests.push_back({.first = trace.references.size(), .blocks = path.size()});
    trace.references.insert(trace.references.end(), path.begin(), path.end());
  }
  return trace;
}

TEST(TraceSimulation, LeavesGoFirstAndTheLeastRecentlyUsedOfThem) {
  // Room for three: 2 goes for 3, then 3, the older leaf, for 2.
  EXPECT_EQ(SimulateLeafLru(TraceOf({{0, 1, 2}, {0, 3}, {0, 1, 2}}, 4), 3).ram_hits, 0u + 1 + 2);
  // A path longer than the room keeps its head.
  EXPECT_EQ(SimulateLeafLru(TraceOf({{0, 1, 2, 3}, {0, 1, 2, 3}}, 4), 3).ram_hits, 3u);
}

TEST(TraceSimulation, AQuarterOfTheBlocksIsSparedOnceItWasRead) {
  const Trace trace = TraceOf({{0}, {0}, {1}, {2}, {3}, {4}, {0}}, 5);
  EXPECT_EQ(SimulateLeafLru(trace, 4).ram_hits, 1u);
  EXPECT_EQ(SimulateSparingLru(trace, 4).ram_hits, 2u);
  EXPECT_EQ(SimulateSparingLru(trace, 3).ram_hits, 1u) << "one of three is more than a quarter";
}

TEST(TraceSimulation, SparingWhatWasReadCostsNoHitsOnRealTraces) {
  for (const char* const name : {"mooncake_conversation", "claude_code_a"}) {
    const auto trace = ReadTrace(ShippedTrace(name));
    ASSERT_TRUE(trace.ok()) << trace.status();
    for (const double percent : {0.5, 1.0, 2.0, 5.0, 10.0, 20.0}) {
      const auto capacity =
          static_cast<uint64_t>(static_cast<double>(trace->unique) * percent / 100);
      EXPECT_GE(SimulateSparingLru(*trace, capacity).hit_percent() + 0.05,
                SimulateLeafLru(*trace, capacity).hit_percent())
          << name << " " << percent;
    }
  }
}

// Measured with another simulator, checked against exhaustive search on small cases.
TEST(TraceSimulation, RealTracesGiveThePublishedTable) {
  struct Case {
    const char* name;
    double percent, hits;
  };
  for (const Case& c :
       {Case{"mooncake_conversation", 1, 5.3}, Case{"mooncake_conversation", 10, 27.9},
        Case{"claude_code_a", 1, 70.5}, Case{"claude_code_a", 5, 95.7}}) {
    const auto trace = ReadTrace(ShippedTrace(c.name));
    ASSERT_TRUE(trace.ok()) << trace.status();
    const auto capacity =
        static_cast<uint64_t>(static_cast<double>(trace->unique) * c.percent / 100);
    EXPECT_NEAR(SimulateLeafLru(*trace, capacity).hit_percent(), c.hits, 0.06)
        << c.name << " " << c.percent;
  }
}

TEST(TraceFit, TheBudgetHoldsWhatWasAskedForAndNoMore) {
  for (const uint64_t blocks : {40u, 1'659u, 1'827u, 18'279u}) {
    for (const uint64_t longest : {1u, 13'000u}) {
      const RamFit fit = FitRam({}, blocks, longest, false);
      EXPECT_LE(fit.blocks, blocks);
      EXPECT_GT(fit.blocks, blocks * 96 / 100);
      const auto shares = ram::CutBudget(fit.ram_bytes, false, false);
      ASSERT_TRUE(shares.ok()) << shares.status();
      EXPECT_GE(shares->index_most_bytes / 2, 8 * longest * fit.shape.tokens());
    }
  }
}

// What the policy reaches on paper is what the daemon reaches.
TEST_F(TraceFile, TheDaemonHitsWhatItsPolicyOfAsManyBlocksHits) {
  const auto trace = ReadTrace(ShippedTrace("claude_code_a.head200"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  const RamFit fit = FitRam({}, trace->unique / 2, 1, false);
  auto player =
      TracePlayer::Start({.shape = fit.shape, .ram_bytes = fit.ram_bytes, .directory = folder_});
  ASSERT_TRUE(player.ok()) << player.status();
  const auto run = PlayTrace(*trace, fit.shape, **player);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->result.requested, trace->references.size());
  // The daemon shares out what is stored, and takes room for a request's blocks before it stores
  // them; on paper each block is stored at once.
  const double paper = static_cast<double>(SimulateSparingLru(*trace, fit.blocks).ram_hits);
  EXPECT_NEAR(static_cast<double>(run->result.ram_hits), paper, paper / 1000);
  EXPECT_EQ(run->result.ssd_hits, 0u);
}

}  // namespace
}  // namespace prefixd::bench
