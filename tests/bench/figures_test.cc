// What prefixd-bench's tables show of the rows that FEATURES.md names: figures, not only an exit
// code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bench/common/bench.h"
#include "bench/common/families.h"
#include "bench/common/timing.h"
#include "bench/common/workloads.h"
#include "bench/kernels/kernels.h"
#include "bench/kv_cache/kv_cache.h"

namespace prefixd::bench {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bench::Options Quiet(const std::string& workload) {
  return {.workload = workload, .directory = std::filesystem::temp_directory_path(), .quiet = true};
}

std::map<std::string, double> FiguresOf(const Bench& bench, const std::string& row) {
  std::map<std::string, double> figures;
  for (const Row& each : bench.rows()) {
    if (each.name != row) continue;
    for (const Figure& figure : each.figures) figures[figure.name] = figure.value;
  }
  EXPECT_FALSE(figures.empty()) << "no row " << row;
  return figures;
}

double Parameter(const Bench& bench, const std::string& name) {
  for (const Figure& figure : bench.parameters()) {
    if (figure.name == name) return figure.value;
  }
  ADD_FAILURE() << "no parameter " << name;
  return 0;
}

// One layer of 512 tokens and head dim 128, as the source's first point.
class KvCacheTest : public ::testing::Test {
 protected:
  static KvCacheOptions OneLayer() {
    return {.layers = 1, .seq_len = 512, .heads = 8, .head_dim = 128, .group_size = 64};
  }
  static Bench& Run(const KvCacheOptions& shape, std::optional<Bench>& bench) {
    Bench::Options options = Quiet("kv-cache");
    options.quick = true;
    options.kv_cache = shape;
    bench.emplace(options);
    RunKvCache(*bench);
    EXPECT_THAT(bench->failures(), ElementsAre());
    return *bench;
  }
  std::optional<Bench> bench_;
};

// S1-30
TEST_F(KvCacheTest, TheTimesOfOneLayerOf512TokensAndHeadDim128ArePrinted) {
  Run(OneLayer(), bench_);
  const Bench& bench = *bench_;
  EXPECT_EQ(Parameter(bench, "layers"), 1);
  EXPECT_EQ(Parameter(bench, "seq_len"), 512);
  EXPECT_EQ(Parameter(bench, "head_dim"), 128);
  for (const char* row : {"8-bit of f32", "4-bit of f32", "8-bit of f16", "4-bit of f16"}) {
    std::map<std::string, double> figures = FiguresOf(bench, row);
    EXPECT_GT(figures["quantize_us"], 0) << row;
    EXPECT_GT(figures["dequantize_us"], 0) << row;
  }
}

// S1-35
TEST_F(KvCacheTest, CompressionIsToldAgainstTheBytesOfTheData) {
  Run(OneLayer(), bench_);
  const Bench& bench = *bench_;
  EXPECT_NEAR(FiguresOf(bench, "8-bit of f16")["compression_ratio"], 1.882, 0.001);
  EXPECT_NEAR(FiguresOf(bench, "4-bit of f16")["compression_ratio"], 3.556, 0.001);
  EXPECT_NEAR(FiguresOf(bench, "8-bit of f32")["compression_ratio"], 3.556, 0.001);
  EXPECT_NEAR(FiguresOf(bench, "4-bit of f32")["compression_ratio"], 6.4, 0.001);
}

// S1-32
TEST_F(KvCacheTest, ResidentMemoryIsToldAtEachStepAndGrowsByWhatIsStored) {
  KvCacheOptions shape = OneLayer();
  shape.layers = 8;
  shape.seq_len = 2048;
  std::map<std::string, double> figures = FiguresOf(Run(shape, bench_), "8-bit of f32");
  const double chunk = 8.0 * 512 * 128 * 4;
  EXPECT_GE(figures["rss_quantized_bytes"],
            figures["rss_before_bytes"] + 0.95 * figures["memory_bytes"]);
  EXPECT_LE(figures["rss_dequantized_bytes"], figures["rss_quantized_bytes"] + chunk);
  EXPECT_LE(figures["extra_bytes"], 2 * chunk) << "floats go chunk by chunk";
}

// S1-32
TEST_F(KvCacheTest, AboveFourFifthsOfMemoryAModeIsRefused) {
  KvCacheOptions shape = OneLayer();
  const CacheMode eight = CacheModes(shape, quant::Dtype::kF32)[1];
  shape.memory_limit_bytes = PayloadBytes(shape, eight.format);  // raw takes more
  const Bench& bench = Run(shape, bench_);
  EXPECT_THAT(bench.notes(), Contains(HasSubstr("refused: raw of f32 would store ")));
  std::set<std::string> rows;
  for (const Row& row : bench.rows()) rows.insert(row.name);
  EXPECT_TRUE(rows.contains("8-bit of f32"));
  EXPECT_FALSE(rows.contains("raw of f32"));
}

// S1-36
TEST(TakeTurnsTest, SidesAreWarmedUpAndEveryRoundBeginsWithAnother) {
  std::string calls;
  std::vector<Side> sides;
  for (const char name : {'a', 'b', 'c'}) {
    sides.push_back({.name = {}, .bytes = 1, .run = [&calls, name] { calls.push_back(name); }});
  }
  const Rounds rounds = TakeTurns(sides, 6);
  ASSERT_EQ(calls.size(), 3 + 6 * 3u);
  EXPECT_EQ(calls.substr(0, 3), "abc") << "once each, before any clock";
  for (const auto& samples : rounds.samples) EXPECT_EQ(samples.size(), 6u);
  std::string firsts;
  for (size_t round = 0; round < 6; ++round) {
    std::string one = calls.substr(3 + round * 3, 3);
    firsts.push_back(one[0]);
    std::sort(one.begin(), one.end());
    EXPECT_EQ(one, "abc");
  }
  for (size_t round = 1; round < 6; ++round) EXPECT_NE(firsts[round], firsts[round - 1]);
}

// S2-16
TEST(TableTest, EveryLengthHasLatencyAndTokensPerSecondOfAllThreeFormats) {
  Bench::Options options = Quiet("kernels");
  options.smoke = true;
  Bench bench(options);
  const std::unique_ptr<KernelMemory> memory = KernelMemory::Make(bench);
  ASSERT_NE(memory, nullptr);
  KernelsTable(bench, *memory);
  EXPECT_THAT(bench.failures(), ElementsAre());
  ASSERT_EQ(bench.rows().size(), 2u);
  for (const char* row : {"decode of 32 layers, 256 tokens", "decode of 32 layers, 512 tokens"}) {
    std::map<std::string, double> figures = FiguresOf(bench, row);
    for (const char* format : {"f16", "8/4", "4/4"}) {
      const double us = figures[std::string(format) + "_us"];
      EXPECT_GT(us, 0) << row << ' ' << format;
      EXPECT_DOUBLE_EQ(figures[std::string(format) + "_tokens_per_s"], 1e6 / us);
    }
    EXPECT_GT(figures["8/4_speedup_ratio"], 0);
    EXPECT_GT(figures["4/4_speedup_ratio"], 0);
  }
  ASSERT_FALSE(bench.notes().empty());
  EXPECT_THAT(bench.notes().back(), HasSubstr("at 512 tokens f16 takes "));
}

// S2-16
TEST(TableTest, TheLengthsAreThoseOfTheSource) {
  EXPECT_THAT(TableLengths(false), ElementsAre(1024, 4096, 16384, 32768));
}

// S2-17
TEST(TableTest, FewerBitsAreFasterFromTheLengthAfterWhichTheyAreNeverSlower) {
  const auto of = [](const std::vector<double>& mixed_us) {
    std::vector<TableLength> lengths;
    for (size_t i = 0; i < mixed_us.size(); ++i) {
      lengths.push_back(
          {.tokens = 1024u << i, .f16_us = 10, .mixed_us = mixed_us[i], .four_us = 1});
    }
    return Crossover(lengths);
  };
  EXPECT_EQ(of({11, 11, 9, 8}), 4096u);
  EXPECT_EQ(of({9, 11, 9, 8}), 4096u) << "at 1,024 they were faster by chance";
  EXPECT_EQ(of({9, 9, 9, 9}), 1024u);
  EXPECT_EQ(of({9, 9, 9, 10}), 0u);
  EXPECT_EQ(of({}), 0u);
}

TEST(FamiliesTest, AStepSaysHowFarTheWorkloadIsAndHowLongTheRestTakes) {
  EXPECT_EQ(StepText("share", "acquire", 1, 9, 0), "share: acquire, 1 of 9");
  EXPECT_EQ(StepText("share", "gather", 4, 9, 35),
            "share: gather, 4 of 9, 35 s so far, about 70 s left");
  EXPECT_EQ(StepText("ssd", "budget", 5, 5, 480),
            "ssd: budget, 5 of 5, 8 min so far, about 2 min left");
}

TEST(FamiliesTest, OnlyWhatIsWantedRunsAndInItsOrder) {
  Bench bench({.workload = "share", .only = {"c", "a"}, .directory = {}, .quiet = true});
  std::string ran;
  RunFamilies(bench,
              {{"a", [&] { ran += "a"; }}, {"b", [&] { ran += "b"; }}, {"c", [&] { ran += "c"; }}});
  EXPECT_EQ(ran, "ac");
}

}  // namespace
}  // namespace prefixd::bench
