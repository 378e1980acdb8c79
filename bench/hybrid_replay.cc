#include "bench/hybrid_replay.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/checksum.h"
#include "base/status.h"
#include "bench/own_cache.h"
#include "block/page_layout.h"
#include "cache/cache.h"

namespace prefixd::bench {
namespace {

using Tokens = std::vector<uint32_t>;
constexpr uint32_t kBlock = 64, kWindow = 1024, kSnapshotTokens = 64;

base::Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

block::LayerGroup Attention(const char* name, std::vector<uint32_t> layers) {
  block::LayerGroup group;
  group.name = name;
  group.layers = std::move(layers);
  group.kv_heads = 2;
  group.key_dim = group.value_dim = 64;
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  group.ladder = {{raw, raw}};
  return group;
}

uint64_t TokenBytes(const block::LayerGroup& group) {
  return block::LayoutOfPage(group, 0, kBlock).payload_bytes / kBlock;
}

block::SpaceIdentity IdentityOf(OtherLayers layers) {
  block::SpaceIdentity identity;
  identity.model = "hybrid";
  identity.weights_digest[0] = std::byte{1};
  identity.block_tokens = kBlock;
  identity.groups = {Attention("full.0", {0})};
  if (layers == OtherLayers::kSliding) {
    block::LayerGroup sliding = Attention("sliding.0", {1, 2, 3, 4, 5});
    sliding.kind = block::LayerKind::kSliding;
    sliding.window = kWindow;
    identity.groups.push_back(sliding);
  } else {
    block::LayerGroup state;
    state.name = "state.0";
    state.kind = block::LayerKind::kState;
    state.layers = {1, 2, 3};
    state.state_bytes = kSnapshotTokens * TokenBytes(identity.groups[0]);
    identity.groups.push_back(state);
  }
  return identity;
}

// What was stored, by the tokens before it; nothing is ever forgotten.
class Oracle {
 public:
  explicit Oracle(OtherLayers layers) : layers_(layers) {}

  void Store(const Tokens& prompt, uint32_t first, uint32_t tokens, bool full, bool sliding) {
    const Tokens slice(prompt.begin() + first, prompt.begin() + first + tokens);
    Block& block = blocks_[Name(prompt, first)][slice];
    block.full |= full;
    block.sliding |= sliding;
  }
  void StoreSnapshot(const Tokens& prompt, uint32_t position) {
    snapshots_.insert(Name(prompt, position));
  }
  // Tokens that the prompt shares with anything stored.
  uint32_t Shared(const Tokens& prompt) const {
    uint32_t at = 0;
    while (at < prompt.size()) {
      const uint32_t more = Reach(prompt, at, [](const Block&) { return true; });
      at += more;
      if (more < kBlock) break;
    }
    return at;
  }
  // The largest length of at most `most` that is right for every layer.
  uint32_t Usable(const Tokens& prompt, uint32_t most) const {
    for (uint32_t r = most; r > 0; --r) {
      if (layers_ == OtherLayers::kRecurrent && !snapshots_.contains(Name(prompt, r))) continue;
      bool right = true;
      for (uint32_t first = 0; first < r && right; first += kBlock) {
        const bool in_window = layers_ == OtherLayers::kSliding && first + kBlock + kWindow > r;
        right = Reach(prompt, first, [&](const Block& block) {
                  return block.full && (!in_window || block.sliding);
                }) >= std::min(kBlock, r - first);
      }
      if (right) return r;
    }
    return 0;
  }

 private:
  struct Block {
    bool full = false, sliding = false;
  };
  static std::pair<uint64_t, uint32_t> Name(const Tokens& prompt, uint32_t count) {
    return {base::Xxh3(std::as_bytes(std::span(prompt).first(count))), count};
  }
  // How many of the prompt's tokens from `first` on one stored block that `serves` holds.
  template <typename Serves>
  uint32_t Reach(const Tokens& prompt, uint32_t first, Serves serves) const {
    const auto found = blocks_.find(Name(prompt, first));
    if (found == blocks_.end()) return 0;
    uint32_t most = 0;
    for (const auto& [slice, block] : found->second) {
      if (!serves(block)) continue;
      uint32_t shared = 0;
      while (shared < slice.size() && first + shared < prompt.size() &&
             slice[shared] == prompt[first + shared]) {
        ++shared;
      }
      most = std::max(most, shared);
    }
    return most;
  }

  const OtherLayers layers_;
  std::map<std::pair<uint64_t, uint32_t>, std::map<Tokens, Block>> blocks_;
  std::set<std::pair<uint64_t, uint32_t>> snapshots_;
};

class Replay {
 public:
  explicit Replay(OtherLayers layers) : identity_(IdentityOf(layers)), oracle_(layers) {
    for (const block::LayerGroup& group : identity_.groups)
      pages_.emplace_back(block::LayoutOfPage(group, 0, kBlock).page_bytes);
  }
  absl::Status Open(uint64_t ram_bytes) {
    cache::Options options;
    options.ram_budget_bytes = ram_bytes;
    PREFIXD_ASSIGN_OR_RETURN(own_, OpenOwnCache(options, identity_));
    return absl::OkStatus();
  }
  absl::Status Play(const Tokens& prompt, HybridResult* result) {
    const auto size = static_cast<uint32_t>(prompt.size());
    const uint32_t shared = oracle_.Shared(prompt);
    const uint32_t most = std::min(shared, size - 1);
    cache::Request request;
    request.space = own_.space;
    request.tokens = prompt;
    request.max_tokens = size - 1;
    PREFIXD_ASSIGN_OR_RETURN(const cache::Acquired acquired,
                             own_.cache->Acquire(own_.session, request, Soon()));
    const uint32_t usable = acquired.match.restorable_tokens;
    const uint32_t right = oracle_.Usable(prompt, most);
    ++result->requests;
    result->requested += size;
    result->full_hits += most;
    result->hits += usable;
    result->oracle_hits += right;
    result->unlike_oracle += usable != right;
    result->stored += size - shared;
    PREFIXD_RETURN_IF_ERROR(Store(prompt, usable));
    uint64_t held = 0;
    for (const block::SpaceSummary& space : own_.cache->ListSpaces())
      held += space.ram_payload_bytes;
    result->held_bytes = std::max(result->held_bytes, held);
    if (!acquired.lease) return absl::OkStatus();
    return own_.cache->Release(own_.session, {.lease = acquired.lease, .used_tokens = usable});
  }
  void Finish(HybridResult* result) const {
    uint64_t token_bytes = 0;
    for (const block::LayerGroup& group : identity_.groups) {
      if (group.kind != block::LayerKind::kState) token_bytes += TokenBytes(group);
    }
    result->full_bytes = result->stored * token_bytes;
  }

 private:
  // What the plan wants; of states only what lies beyond what was computed from.
  absl::Status Store(const Tokens& prompt, uint32_t usable) {
    PREFIXD_ASSIGN_OR_RETURN(
        const block::ReservePlan plan,
        own_.cache->Reserve(
            own_.session,
            {.space = own_.space, .tokens = prompt, .content = {}, .groups = {}, .writable = {}}));
    for (const block::BlockPlan& block : plan.blocks) {
      bool wrote[2] = {};
      for (uint32_t g = 0; g < identity_.groups.size(); ++g) {
        if (block.state == block::BlockState::kPresent || block.rungs[g] == block::kNoLimit)
          continue;
        wrote[g] = true;
        PREFIXD_RETURN_IF_ERROR(Put(plan, g, block.first_token, 0, block.tokens));
      }
      oracle_.Store(prompt, block.first_token, block.tokens, wrote[0], wrote[1]);
    }
    for (const uint32_t position : plan.snapshot_tokens) {
      if (position <= usable) continue;
      const uint32_t first = (position - 1) / kBlock * kBlock;
      PREFIXD_RETURN_IF_ERROR(Put(plan, 1, first, position - first, position - first));
      oracle_.StoreSnapshot(prompt, position);
    }
    return own_.cache
        ->Commit(own_.session, {.reservation = plan.reservation,
                                .tokens = static_cast<uint32_t>(prompt.size()),
                                .sequence_end = true,
                                .ends = {}})
        .status();
  }
  absl::Status Put(const block::ReservePlan& plan, uint32_t group, uint32_t first, uint32_t rung,
                   uint32_t tokens) {
    const bool state = identity_.groups[group].kind == block::LayerKind::kState;
    const uint64_t bytes =
        block::LayoutOfPage(identity_.groups[group], state ? 0 : rung, tokens).page_bytes;
    const auto page = std::span<const std::byte>(pages_[group]).first(bytes);
    return own_.cache->PutPage(own_.session, plan.reservation,
                               {.group = group,
                                .first_token = first,
                                .tokens = tokens,
                                .rung = rung,
                                .page_bytes = bytes,
                                .xxh3 = base::Xxh3(page),
                                .data = page},
                               Soon());
  }

  const block::SpaceIdentity identity_;
  Oracle oracle_;
  std::vector<std::vector<std::byte>> pages_;  // zeros, as long as each group's longest
  OwnCache own_;
};

}  // namespace

absl::StatusOr<HybridResult> PlayHybrid(const std::vector<Tokens>& prompts, OtherLayers layers,
                                        uint64_t ram_bytes) {
  Replay replay(layers);
  PREFIXD_RETURN_IF_ERROR(replay.Open(ram_bytes));
  HybridResult result;
  for (const Tokens& prompt : prompts) PREFIXD_RETURN_IF_ERROR(replay.Play(prompt, &result));
  replay.Finish(&result);
  return result;
}

}  // namespace prefixd::bench
