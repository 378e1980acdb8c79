// The simulation against an oracle that keeps plain sets and looks at everything each time.
#include "sizing/simulation.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "tests/sizing/traces.h"

namespace prefixd::sizing {
namespace {

constexpr uint32_t kBlock = 16;

// The policy as src/index says it, without order structures: of the blocks with none below them in
// RAM, none of them of this request, the one whose last use is longest ago; while those that were
// read take at most a quarter, one that was not, if there is one.
class Oracle {
 public:
  explicit Oracle(uint64_t capacity) : capacity_(capacity) {}

  // Returns how many leading blocks were there.
  size_t Play(const std::vector<TraceBlock>& path) {
    ++request_;
    size_t found = 0;
    while (found < path.size() && in_.contains(path[found])) ++found;
    for (size_t i = found; i-- > 0;) Use(path[i], true);
    size_t stored = found;
    for (; stored < path.size(); ++stored) {
      if (in_.size() == capacity_ && !EvictOne()) break;
      in_[path[stored]] = {.parent = stored == 0 ? ~TraceBlock{0} : path[stored - 1],
                           .stamp = ++clock_,
                           .request = request_};
    }
    for (size_t i = stored; i-- > 0;) Use(path[i], false);
    return found;
  }

 private:
  struct Block {
    TraceBlock parent = 0;
    uint64_t stamp = 0, request = 0;
    bool read = false;
  };
  void Use(TraceBlock block, bool read) {
    in_[block].stamp = ++clock_;
    in_[block].request = request_;
    in_[block].read |= read;
  }
  bool EvictOne() {
    uint64_t read = 0;
    for (const auto& [id, block] : in_) read += block.read ? 1 : 0;
    const bool spares = read <= capacity_ / 4;
    const Block* victim = nullptr;
    TraceBlock victim_id = 0;
    for (const auto& [id, block] : in_) {
      bool leaf = block.request != request_;
      for (const auto& [other, child] : in_) leaf &= child.parent != id;
      if (!leaf) continue;
      const bool later =
          victim != nullptr &&
          (spares && victim->read != block.read ? block.read : block.stamp > victim->stamp);
      if (later) continue;
      victim = &block;
      victim_id = id;
    }
    if (victim == nullptr) return false;
    in_.erase(victim_id);
    return true;
  }

  const uint64_t capacity_;
  std::map<TraceBlock, Block> in_;
  uint64_t clock_ = 0, request_ = 0;
};

TEST(SimulationTest, RamHitsWhatTheOracleHitsOnRandomTraces) {
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const auto paths = RandomPaths(random, {.requests = 150, .longest = 8, .fan_out = 3});
    for (const uint64_t capacity : {3u, 8u, 17u, 40u, 1000u}) {
      Oracle oracle(capacity);
      uint64_t expected = 0;
      for (const auto& path : paths) expected += oracle.Play(path) * kBlock;
      const Trace trace = TraceOf(paths, kBlock);
      const Hits hits = Simulate(trace, {.ram_tokens = capacity * kBlock});
      EXPECT_EQ(hits.ram_tokens, expected) << "seed " << seed << ", capacity " << capacity;
      EXPECT_EQ(hits.ssd_tokens, 0u);
      EXPECT_EQ(hits.requested_tokens, trace.references.size() * kBlock);
    }
  }
}

TEST(SimulationTest, RoomForEverythingHitsWhatAnyCacheCanHit) {
  std::mt19937 random(7);
  const Trace trace = TraceOf(RandomPaths(random, {.requests = 400}), kBlock);
  const Hits most = HitsOfAll(trace);
  EXPECT_EQ(Simulate(trace, {.ram_tokens = trace.unique * kBlock}).tokens(), most.tokens());
  EXPECT_EQ(Simulate(trace, {.ram_tokens = 0}).tokens(), 0u);
}

TEST(SimulationTest, ABlockThatLeftRamIsHitOnSsdAndCountsThere) {
  // Room for 8 in RAM: 0 and 1 are pushed out by those that follow, and come back from the SSD.
  std::vector<std::vector<TraceBlock>> paths = {{0, 1}};
  for (TraceBlock block = 2; block < 30; ++block) paths.push_back({block});
  paths.push_back({0, 1});
  const Trace trace = TraceOf(paths, kBlock);
  const CacheSize size{.ram_tokens = 8 * kBlock, .ssd_tokens = 1000 * kBlock};
  const Hits hits = Simulate(trace, size);
  EXPECT_EQ(hits.ssd_tokens, 2u * kBlock);
  EXPECT_EQ(hits.ram_tokens, 0u);
  EXPECT_GE(hits.ssd_written_tokens, 2u * kBlock);
  EXPECT_EQ(Simulate(trace, {.ram_tokens = 8 * kBlock}).tokens(), 0u);
}

TEST(SimulationTest, WithRoomForAllOnSsdNothingIsLostHoweverSmallRamIs) {
  std::mt19937 random(11);
  const Trace trace = TraceOf(RandomPaths(random, {.requests = 600}), kBlock);
  const Hits hits = Simulate(
      trace,
      {.ram_tokens = 40 * kBlock, .ssd_tokens = 4 * trace.unique * kBlock, .ssd_write_share = 0});
  EXPECT_EQ(hits.tokens(), HitsOfAll(trace).tokens());
  EXPECT_GT(hits.ssd_tokens, 0u);
}

TEST(SimulationTest, WhatTheSsdWritesStaysWithinItsShareOfWhatIsAskedFor) {
  std::mt19937 random(13);
  const Trace trace = TraceOf(RandomPaths(random, {.requests = 3'000, .fan_out = 12}), kBlock);
  const uint64_t ssd = 64 * kBlock;
  const Hits hits = Simulate(trace, {.ram_tokens = 32 * kBlock,
                                     .ssd_tokens = ssd,
                                     .ssd_write_share = 0.1,
                                     .ssd_shallow_tokens = 0});
  // It begins with the whole SSD to fill; a segment may overdraw.
  EXPECT_LE(static_cast<double>(hits.ssd_written_tokens),
            0.1 * static_cast<double>(hits.requested_tokens) * 2 + static_cast<double>(2 * ssd));
}

// Names of 100 bytes in a share of 1,000, which holds 9 of them: the index grows by a slab of two
// blocks of RAM, and the other RAM keeps its blocks.
TEST(SimulationTest, AnIndexThatGrowsTakesRam) {
  std::vector<std::vector<TraceBlock>> paths;
  for (TraceBlock block = 0; block < 20; ++block) paths.push_back({block});
  for (TraceBlock block = 20; block-- > 0;) paths.push_back({block});
  const Trace trace = TraceOf(paths, kBlock);
  const auto hits = [&](uint64_t most) {
    return Simulate(trace, {.ram_tokens = 20 * kBlock,
                            .index_bytes = 1000,
                            .index_bytes_per_block = 100,
                            .index_most_bytes = most,
                            .slab_bytes = 1000,
                            .ram_tokens_of_slab = 2 * kBlock,
                            .ghosts = 0})
               .ram_tokens /
           kBlock;
  };
  EXPECT_LT(hits(1000), 10u);
  EXPECT_EQ(hits(2000), 18u) << "room for 18 blocks, and for their names";
}

TEST(SimulationTest, AShortLastBlockCountsItsTokensAlone) {
  Trace trace = TraceOf({{0, 1}, {0, 1}}, kBlock);
  trace.block_sizes[1] = 3;
  for (Trace::Request& request : trace.requests) request.tokens = kBlock + 3;
  const Hits hits = Simulate(trace, {.ram_tokens = 100 * kBlock});
  EXPECT_EQ(hits.ram_tokens, kBlock + 3u);
  EXPECT_EQ(hits.requested_tokens, 2 * (kBlock + 3u));
}

}  // namespace
}  // namespace prefixd::sizing
