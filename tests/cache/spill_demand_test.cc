// When the spiller starts, and how far it goes on (cache/room/spill_demand.h).
#include <thread>

#include "tests/cache/fixture.h"

namespace prefixd::testing {
namespace {

class SpillDemandTest : public CacheTest {
 protected:
  struct Level {
    uint64_t capacity_bytes = 0;
    uint64_t free_bytes = 0;   // whole slabs that serve no size
    uint64_t clean_bytes = 0;  // of nobody's leases here
  };
  // Requires: private memory, in which every slab is in service.
  Level Now() {
    constexpr uint64_t kSlabBytes = 4 * kMiB;
    const block::Stats stats = cache_->GetStats();
    uint64_t in_use = 0;
    for (const block::NamedCount& part : stats.ram_parts) {
      if (part.name == "arena") in_use = part.value;
    }
    const uint64_t capacity = Counter("arena.slabs_in_service") * kSlabBytes;
    EXPECT_EQ(in_use % kSlabBytes, 0u);
    return {.capacity_bytes = capacity,
            .free_bytes = capacity - in_use,
            .clean_bytes = Counter("arena.extent_bytes") - stats.dirty_bytes};
  }
  // Returns whether `is` holds within ten seconds.
  template <typename Condition>
  static bool Soon(const Condition& is) {
    for (const base::Deadline end = In(10'000); !is();) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
};

TEST_F(SpillDemandTest, ItStartsBelowTwoEighthsOfTheArenaAndGoesOnToThree) {
  cache::Options options = WithSsd(64 * kMiB);
  options.segment_bytes = kMiB;
  Open(options);
  const auto identity = SmallIdentity(64, 16);
  const auto space = OpenSpace(identity);
  const uint64_t eighth = Now().capacity_bytes / 8;
  for (uint64_t i = 0; Now().free_bytes >= 2 * eighth; ++i) {
    ASSERT_EQ(Counter("segments.written"), 0u) << "with " << Now().free_bytes << " bytes free";
    ASSERT_TRUE(Store(identity, space, RandomTokens(i, 64)).ok());
  }
  ASSERT_GE(Now().free_bytes, eighth);
  // Nothing more is stored: what is written now was asked for at this level.
  EXPECT_TRUE(Soon([&] {
    const Level level = Now();
    return level.free_bytes + level.clean_bytes >= 3 * eighth;
  })) << Now().free_bytes
      << " bytes free, " << Now().clean_bytes << " clean of " << Now().capacity_bytes;
}

}  // namespace
}  // namespace prefixd::testing
