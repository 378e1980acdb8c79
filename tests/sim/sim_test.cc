// The simulator: PREFIXD_SIM_SECONDS of real time for each test (10 by default), PREFIXD_SIM_SEED
// for the first seed. A world that fails prints its seed and its last steps.
#include <cstdlib>

#include "tests/sim/world.h"

namespace prefixd::testing {
namespace {

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

// Lives through worlds of one setup, a seed each, until the time is over, and through so many that
// what is expected of them together holds on a slow machine.
void Simulate(const Setup& setup) {
  constexpr int kSteps = 3000, kFewestWorlds = 5;
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::seconds(Setting("PREFIXD_SIM_SECONDS", 10));
  uint64_t seed = Setting("PREFIXD_SIM_SEED", 1), worlds = 0, hits = 0, lives = 0, brought = 0;
  double hours = 0;
  do {
    SCOPED_TRACE("PREFIXD_SIM_SEED=" + std::to_string(seed));
    World world(seed++, setup);
    for (int step = 0; step < kSteps; ++step) {
      if (!world.Step()) return;
    }
    if (!world.ComeToRest()) return;
    ++worlds;
    hits += world.hits();
    lives += world.lives();
    brought += world.brought();
    hours += world.simulated_hours();
  } while (worlds < kFewestWorlds || std::chrono::steady_clock::now() < end);
  std::cout << worlds << " worlds, " << lives << " lives of the daemon, " << hours
            << " simulated hours, " << hits << " tokens checked, " << brought
            << " brought from other hosts\n";
  EXPECT_GT(hits, worlds * 500);
  EXPECT_EQ(brought > worlds * 5, setup.remote);
}

TEST(SimTest, H3CalmWorldsLoseNothing) {
  Simulate({.ram_bytes = uint64_t{64} << 20,
            .ssd_bytes = uint64_t{1} << 30,
            .layers = 4,
            .calm = true,
            .power_cuts = false});
}

TEST(SimTest, H3PowerCutsTakeNothingThatWasDurable) {
  Simulate(
      {.ram_bytes = uint64_t{64} << 20, .ssd_bytes = uint64_t{1} << 30, .layers = 4, .calm = true});
}

TEST(SimTest, H3RoughWorldsAreNeverWrongAndComeToRest) { Simulate({}); }

TEST(SimTest, H3RoughWorldsWithPrivateMemory) { Simulate({.shared = false}); }

TEST(SimTest, H3WorldsWithoutAnSsd) { Simulate({.ssd_bytes = 0}); }

TEST(SimTest, R10WorldsWithAStoreThatHostsShare) { Simulate({.layers = 4, .remote = true}); }

TEST(SimTest, R10WorldsWithThatStoreAndWithoutAnSsd) { Simulate({.ssd_bytes = 0, .remote = true}); }

}  // namespace
}  // namespace prefixd::testing
