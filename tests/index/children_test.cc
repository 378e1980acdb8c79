// One system prompt, a hundred thousand different first turns.
#include "index_fixture.h"

namespace prefixd::index {
namespace {

TEST_F(IndexTest, AMatchAmongAHundredThousandChildrenLooksAtFewOfThem) {
  constexpr uint32_t kChildren = 100'000;
  const Tokens prompt = Count(1, 16);
  Store(prompt);
  for (uint32_t i = 0; i < kChildren; ++i) {
    const uint32_t spread = i * 2654435761u;
    Store(Join(prompt, {7, 7, spread, spread ^ 1, 3, 4, 5}));
  }
  EXPECT_EQ(Summary().blocks, 1 + uint64_t{kChildren});
  for (const uint32_t i : {0u, 1u, 77u, 49'999u, kChildren - 1}) {
    const uint32_t spread = i * 2654435761u;
    const uint64_t before = index_.Counts().comparisons;
    const auto answer = Match(Join(prompt, {7, 7, spread, spread ^ 1, 3, 4, 6, 6}));
    EXPECT_EQ(answer.matched_tokens, 22u);
    EXPECT_EQ(answer.restorable_tokens, 22u);
    EXPECT_LT(index_.Counts().comparisons - before, 200u);
  }
}

}  // namespace
}  // namespace prefixd::index
