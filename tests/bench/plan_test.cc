// prefixctl plan against the daemon: the hit rate that the simulation gives for a budget is the one
// that prefixd itself counts when the trace is played.
#include "sizing/plan.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "base/size.h"
#include "bench/trace/file.h"
#include "bench/trace/player.h"
#include "tests/bench/shipped_trace.h"

namespace prefixd::bench {
namespace {

// A block of the trace is one of 128 tokens in one page: the same hits, in a fraction of the bytes.
struct Workload {
  const char* trace;
  size_t requests;
  uint64_t page_bytes;
};
struct Budget {
  uint64_t ram_bytes, ssd_bytes;
};

class PlanAndDaemon : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "prefixd-plan-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // As the player stores it: every block is whole, and of so many tokens.
  static void MakeWhole(uint32_t block_tokens, Trace* trace) {
    trace->block_tokens = block_tokens;
    for (uint32_t& tokens : trace->block_sizes) tokens = block_tokens;
    for (Trace::Request& request : trace->requests) {
      request.tokens = request.blocks * block_tokens;
    }
  }
  // `most_points`: of 100, in the hit rate of tokens.
  void Compare(const Workload& workload, const Budget& budget, double most_points = 1) {
    auto trace = ReadTrace(ShippedTrace(workload.trace), workload.requests);
    ASSERT_TRUE(trace.ok()) << trace.status();
    const TraceShape shape{128, 1, workload.page_bytes};
    MakeWhole(shape.tokens(), &*trace);
    auto player = TracePlayer::Start({.shape = shape,
                                      .ram_bytes = budget.ram_bytes,
                                      .ssd_bytes = budget.ssd_bytes,
                                      .directory = folder_});
    ASSERT_TRUE(player.ok()) << player.status();
    const auto run = PlayTrace(*trace, shape, **player);
    ASSERT_TRUE(run.ok()) << run.status();
    const auto counted = (*player)->Tokens();
    ASSERT_TRUE(counted.ok()) << counted.status();
    sizing::PlanOptions options;
    options.shape = {.bytes_per_token = workload.page_bytes / shape.tokens(),
                     .block_tokens = shape.block_tokens,
                     .shared_arena = false,
                     .pages = 1};
    options.ssd_shallow_tokens = shape.shallow_tokens();
    options.ram_bytes = {budget.ram_bytes};
    options.ssd_bytes = {budget.ssd_bytes};
    const auto plan = sizing::MakePlan(*trace, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const sizing::Hits& hits = plan->cells[0].hits;
    const auto percent = [](double part, double whole) { return 100 * part / whole; };
    const double requested = static_cast<double>(counted->requested);
    const double daemon = percent(static_cast<double>(counted->restorable), requested);
    const double daemon_ssd = percent(static_cast<double>(counted->from_ssd), requested);
    const double planned = 100 * hits.Share(hits.tokens());
    const double planned_ssd = 100 * hits.Share(hits.ssd_tokens);
    std::printf("%s, RAM %s, SSD %s: daemon %.2f %% (SSD %.2f), plan %.2f %% (SSD %.2f)\n",
                workload.trace, base::FormatBytes(budget.ram_bytes).c_str(),
                base::FormatBytes(budget.ssd_bytes).c_str(), daemon, daemon_ssd, planned,
                planned_ssd);
    EXPECT_NEAR(planned, daemon, most_points);
    EXPECT_NEAR(planned_ssd, daemon_ssd, 2 * most_points);  // RAM has the rest
  }
  std::string folder_;
};

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_F(PlanAndDaemon, S7PlanIsWithinAPointWithLittleRam) {
  Compare({"mooncake_conversation", 2'500, 24 << 10}, {64 * kMiB, 0});
}

TEST_F(PlanAndDaemon, S7PlanIsWithinAPointWithMoreRam) {
  Compare({"mooncake_conversation", 2'500, 24 << 10}, {256 * kMiB, 0});
}

TEST_F(PlanAndDaemon, S7PlanIsWithinAPointOnSessionsOfAgents) {
  Compare({"claude_code_a", 600, 24 << 10}, {48 * kMiB, 0});
}

TEST_F(PlanAndDaemon, S7PlanIsWithinAPointWithRamAndSsd) {
  Compare({"mooncake_conversation", 2'000, 128 << 10}, {256 * kMiB, 1024 * kMiB});
}

// Pages so small that the index has room for a few thousand blocks, in both tiers. What it forgets
// depends on which segments are written by then: runs differ by half a point among themselves.
TEST_F(PlanAndDaemon, WhereTheIndexIsFullThePlanIsWithinTwoPoints) {
  Compare({"mooncake_conversation", 2'000, 24 << 10}, {64 * kMiB, 256 * kMiB}, 2);
}

}  // namespace
}  // namespace prefixd::bench
