// Spaces of full, sliding and state groups, and a writer that stores what a plan wants.
#pragma once
#include "tests/cache/shared_fixture.h"

namespace prefixd::testing {

// Full, sliding (window 40, sinks 4) and state groups, in blocks of 16 tokens.
inline block::SpaceIdentity MixedIdentity(uint64_t state_bytes = 5001) {
  block::SpaceIdentity identity = SmallIdentity(16, 2);
  identity.model = "mixed";
  block::LayerGroup sliding = identity.groups[0];
  sliding.name = "sliding.0";
  sliding.kind = block::LayerKind::kSliding;
  sliding.layers = {2, 3};
  sliding.window = 40;
  sliding.sink_tokens = 4;
  block::LayerGroup state;
  state.name = "state.0";
  state.kind = block::LayerKind::kState;
  state.layers = {4};
  state.state_bytes = state_bytes;
  identity.groups.push_back(sliding);
  identity.groups.push_back(state);
  return identity;
}

struct Plan {
  block::ReservePlan reserved;
  Tokens tokens;
};

class MixedTest : public SharedCacheTest {
 protected:
  Plan Reserve(block::SpaceHandle space, const Tokens& tokens,
               const std::vector<uint32_t>& turn_ends = {}) {
    auto reserved = cache_->Reserve(session_, {.space = space,
                                               .tokens = tokens,
                                               .content = {},
                                               .groups = {},
                                               .writable = {},
                                               .turn_ends = turn_ends});
    EXPECT_TRUE(reserved.ok()) << reserved.status();
    return {reserved.ok() ? *reserved : block::ReservePlan(), tokens};
  }
  absl::Status Put(const block::SpaceIdentity& identity, const Plan& plan, uint32_t group,
                   uint32_t first_token, uint32_t rung, uint32_t tokens) {
    const std::vector<std::byte> page =
        MakePage(identity.groups[group], rung, plan.tokens, first_token, tokens);
    for (size_t at = 0; at < page.size(); at += cache::kMaxPieceBytes) {
      const auto data =
          std::span(page).subspan(at, std::min(cache::kMaxPieceBytes, page.size() - at));
      const absl::Status put = cache_->PutPage(session_, plan.reserved.reservation,
                                               {.group = group,
                                                .first_token = first_token,
                                                .tokens = tokens,
                                                .rung = rung,
                                                .page_bytes = page.size(),
                                                .offset = at,
                                                .xxh3 = base::Xxh3(data),
                                                .data = data},
                                               In(10000));
      if (!put.ok()) return put;
    }
    return absl::OkStatus();
  }
  // A snapshot of every state group after `position` tokens.
  absl::Status PutSnapshot(const block::SpaceIdentity& identity, const Plan& plan,
                           uint32_t position) {
    const uint32_t first = (position - 1) / identity.block_tokens * identity.block_tokens;
    for (uint32_t g = 0; g < identity.groups.size(); ++g) {
      if (identity.groups[g].kind != block::LayerKind::kState) continue;
      absl::Status put = Put(identity, plan, g, first, position - first, position - first);
      if (!put.ok()) return put;
    }
    return absl::OkStatus();
  }
  // The pages that the plan wants; of sliding groups only from `sliding_from` on.
  absl::Status PutPages(const block::SpaceIdentity& identity, const Plan& plan,
                        uint32_t sliding_from = 0) {
    for (const block::BlockPlan& block : plan.reserved.blocks) {
      for (uint32_t g = 0; g < identity.groups.size(); ++g) {
        const bool sliding = identity.groups[g].kind == block::LayerKind::kSliding;
        if (block.rungs[g] == block::kNoLimit) continue;
        if (sliding && block.first_token < sliding_from) continue;
        absl::Status put = Put(identity, plan, g, block.first_token, block.rungs[g], block.tokens);
        if (!put.ok()) return put;
      }
    }
    return absl::OkStatus();
  }
  absl::StatusOr<block::CommitAnswer> Commit(const Plan& plan, std::vector<uint32_t> ends = {}) {
    return cache_->Commit(session_, {.reservation = plan.reserved.reservation,
                                     .tokens = static_cast<uint32_t>(plan.tokens.size()),
                                     .sequence_end = true,
                                     .ends = std::move(ends)});
  }
  // All of it: pages and the snapshots that are wanted.
  void StoreAll(const block::SpaceIdentity& identity, block::SpaceHandle space,
                const Tokens& tokens, const std::vector<uint32_t>& turn_ends = {}) {
    const Plan plan = Reserve(space, tokens, turn_ends);
    ASSERT_TRUE(PutPages(identity, plan).ok());
    for (const uint32_t position : plan.reserved.snapshot_tokens) {
      const absl::Status put = PutSnapshot(identity, plan, position);
      ASSERT_TRUE(put.ok()) << put;
    }
    const auto committed = Commit(plan, turn_ends);
    ASSERT_TRUE(committed.ok()) << committed.status();
  }
};

}  // namespace prefixd::testing
