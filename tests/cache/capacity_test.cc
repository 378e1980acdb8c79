// What fits: pages of several sizes in turn.
#include "fixture.h"

namespace prefixd::testing {
namespace {

// Pages of `layers` times 139,264 bytes in each of two groups.
block::SpaceIdentity OfPages(const std::string& model, uint32_t layers) {
  block::SpaceIdentity identity = Qwen3Identity();
  identity.model = model;
  identity.groups.resize(2);
  for (uint32_t g = 0; g < 2; ++g) {
    identity.groups[g].layers.clear();
    for (uint32_t l = 0; l < layers; ++l) identity.groups[g].layers.push_back(g * layers + l);
  }
  return identity;
}

class CapacityTest : public CacheTest {
 protected:
  // Prompts of 64 to 256 tokens, the small numbers often. The share of tokens that was there.
  double Serve(const block::SpaceIdentity& identity, uint64_t seed, int requests) {
    const block::SpaceHandle space = OpenSpace(identity);
    std::mt19937_64 random(seed);
    uint64_t asked = 0, found = 0;
    for (int i = 0; i < requests; ++i) {
      const uint64_t prompt = std::min(random() % 160, random() % 160);
      const Tokens tokens = RandomTokens(prompt + 1, 64 * (1 + prompt % 4));
      const cache::Acquired acquired = Acquire(space, tokens);
      asked += tokens.size();
      found += acquired.match.restorable_tokens;
      if (acquired.lease) {
        EXPECT_TRUE(cache_->Release(session_, {.lease = acquired.lease}).ok());
      }
      if (acquired.match.restorable_tokens < tokens.size()) {
        EXPECT_TRUE(Store(identity, space, tokens).ok());
      }
    }
    return static_cast<double>(found) / static_cast<double>(asked);
  }
};

TEST_F(CapacityTest, AnArenaThatServedAnotherPageSizeHitsAsAFreshOne) {
  const block::SpaceIdentity a = OfPages("a", 1), b = OfPages("b", 3);
  Open(RamOnly());
  Serve(a, 1, 400);
  const double fresh = Serve(a, 2, 600);
  Open(RamOnly());
  Serve(a, 3, 300);
  Serve(b, 4, 200);
  Serve(a, 1, 400);
  const double after = Serve(a, 2, 600);
  EXPECT_GT(fresh, 0.3);
  EXPECT_LT(fresh, 0.95);
  EXPECT_NEAR(after, fresh, 0.01);
  uint64_t payload = 0, arena = 0;
  for (const block::SpaceSummary& space : cache_->ListSpaces()) payload += space.ram_payload_bytes;
  for (const block::NamedCount& part : cache_->GetStats().ram_parts) {
    if (part.name == "arena") arena = part.value;
  }
  EXPECT_GE(static_cast<double>(payload), 0.95 * static_cast<double>(arena));
}

}  // namespace
}  // namespace prefixd::testing
