// Models whose layers are not all full attention, on real agent prompts through the cache in this
// process: how many of the tokens that a model of attention alone would find they can use, and what
// that costs in bytes. The budget is tight: snapshots and sliding pages that nobody can need have
// to go. tests/model and tests/index check each usable length.
#include <algorithm>
#include <chrono>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "bench/common/own_cache.h"
#include "bench/common/shared_daemon.h"
#include "bench/trace/file.h"
#include "bench/trace/player.h"
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

block::SpaceIdentity IdentityWith(block::LayerGroup other) {
  block::SpaceIdentity identity;
  identity.model = "hybrid";
  identity.weights_digest[0] = std::byte{1};
  identity.block_tokens = kBlock;
  identity.groups = {Attention("full.0", {0}), std::move(other)};
  return identity;
}

block::SpaceIdentity ThreeOfFourRecurrent() {
  block::LayerGroup state;
  state.name = "state.0";
  state.kind = block::LayerKind::kState;
  state.layers = {1, 2, 3};
  state.state_bytes = kSnapshotTokens * TokenBytes(Attention("full.0", {0}));
  return IdentityWith(state);
}

block::SpaceIdentity FiveOfSixSliding() {
  block::LayerGroup sliding = Attention("sliding.0", {1, 2, 3, 4, 5});
  sliding.kind = block::LayerKind::kSliding;
  sliding.window = kWindow;
  return IdentityWith(sliding);
}

// The longest prefix that `prompt` shares with one of `stored`: with a neighbour in token order.
uint32_t Shared(const std::set<Tokens>& stored, const Tokens& prompt) {
  const auto common = [&](const Tokens& other) {
    return static_cast<uint32_t>(std::ranges::mismatch(other, prompt).in2 - prompt.begin());
  };
  const auto after = stored.lower_bound(prompt);
  uint32_t shared = after == stored.end() ? 0 : common(*after);
  if (after != stored.begin()) shared = std::max(shared, common(*std::prev(after)));
  return shared;
}

struct Result {
  uint64_t requested = 0, hits = 0, full_hits = 0;  // tokens; full: of attention alone
  uint64_t stored = 0;                              // tokens, each once
  uint64_t held_bytes = 0;                          // pages and snapshots, at most at any time
};

class Replay {
 public:
  explicit Replay(block::SpaceIdentity identity) : identity_(std::move(identity)) {
    for (const block::LayerGroup& group : identity_.groups)
      pages_.emplace_back(block::LayoutOfPage(group, 0, kBlock).page_bytes);
  }
  absl::Status Open(uint64_t ram_bytes) {
    cache::Options options;
    options.ram_budget_bytes = ram_bytes;
    PREFIXD_ASSIGN_OR_RETURN(own_, OpenOwnCache(options, identity_));
    return absl::OkStatus();
  }
  // Asks for all but the last token, and stores what the plan wants.
  absl::Status Play(const Tokens& prompt, Result* result) {
    const auto size = static_cast<uint32_t>(prompt.size());
    const uint32_t shared = Shared(stored_, prompt);
    cache::Request request;
    request.space = own_.space;
    request.tokens = prompt;
    request.max_tokens = size - 1;
    PREFIXD_ASSIGN_OR_RETURN(const cache::Acquired acquired,
                             own_.cache->Acquire(own_.session, request, Soon()));
    const uint32_t usable = acquired.match.restorable_tokens;
    result->requested += size;
    result->full_hits += std::min(shared, size - 1);
    result->hits += usable;
    result->stored += size - shared;
    PREFIXD_RETURN_IF_ERROR(Store(prompt, usable));
    stored_.insert(prompt);
    uint64_t held = 0;
    for (const block::SpaceSummary& space : own_.cache->ListSpaces())
      held += space.ram_payload_bytes;
    result->held_bytes = std::max(result->held_bytes, held);
    if (!acquired.lease) return absl::OkStatus();
    return own_.cache->Release(own_.session, {.lease = acquired.lease, .used_tokens = usable});
  }

 private:
  // Stores the pages of the prompt that are missing, and its states beyond the `usable` tokens.
  absl::Status Store(const Tokens& prompt, uint32_t usable) {
    PREFIXD_ASSIGN_OR_RETURN(
        const block::ReservePlan plan,
        own_.cache->Reserve(
            own_.session,
            {.space = own_.space, .tokens = prompt, .content = {}, .groups = {}, .writable = {}}));
    for (const block::BlockPlan& block : plan.blocks) {
      if (block.state == block::BlockState::kPresent) continue;
      for (uint32_t g = 0; g < identity_.groups.size(); ++g) {
        if (block.rungs[g] == block::kNoLimit) continue;
        PREFIXD_RETURN_IF_ERROR(Put(plan, g, block.first_token, 0, block.tokens));
      }
    }
    for (const uint32_t position : plan.snapshot_tokens) {
      if (position <= usable) continue;
      const uint32_t first = (position - 1) / kBlock * kBlock;
      PREFIXD_RETURN_IF_ERROR(Put(plan, 1, first, position - first, position - first));
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
  std::vector<std::vector<std::byte>> pages_;  // zeros, as long as each group's longest
  std::set<Tokens> stored_;
  OwnCache own_;
};

void Judge(Bench& bench, const std::string& name, const block::SpaceIdentity& identity,
           const Result& result, uint64_t requests) {
  uint64_t token_bytes = 0;  // of keys and values
  for (const block::LayerGroup& group : identity.groups) {
    if (group.kind != block::LayerKind::kState) token_bytes += TokenBytes(group);
  }
  const auto full_bytes = static_cast<double>(result.stored * token_bytes);
  const auto held_bytes = static_cast<double>(result.held_bytes);
  bench.Judge(
      {.name = name + ", hits",
       .ours = absl::StrCat("hits ", result.hits, " tokens"),
       .reference = absl::StrCat("full attention ", result.full_hits, " of ", result.requested),
       .seen = static_cast<double>(result.hits) / static_cast<double>(result.full_hits),
       .at_most = false,
       .limit = 0.95,
       .runs = requests});
  bench.Judge({.name = name + ", extra bytes",
               .ours = "held " + BytesText(held_bytes),
               .reference = "keys and values " + BytesText(full_bytes),
               .measure = "extra",
               .seen = held_bytes / full_bytes - 1,
               .limit = 0.15,
               .runs = requests});
}

}  // namespace

void TraceHybrid(Bench& bench) {
  const std::string path =
      absl::StrCat(PREFIXD_SOURCE_DIR, "/tests/data/traces/agent_prompts_taubench",
                   bench.smoke() ? ".head200" : "", ".jsonl.zst");
  const auto prompts = ReadPrompts(path, bench.Parameter("prompts_at_most", 100, 100'000));
  if (!bench.Check(prompts.ok(), prompts.status().ToString())) return;
  const struct {
    const char* name;
    block::SpaceIdentity identity;
    uint64_t ram_bytes;  // keys and values just fit in
  } models[] = {{"3 of 4 layers recurrent", ThreeOfFourRecurrent(), 36 * kMiB},
                {"5:1 sliding layers, window 1,024", FiveOfSixSliding(), 48 * kMiB}};
  for (const auto& model : models) {
    Replay replay(model.identity);
    Result result;
    absl::Status status = replay.Open(model.ram_bytes);
    for (size_t i = 0; status.ok() && i < prompts->size(); ++i) {
      status = replay.Play((*prompts)[i], &result);
    }
    if (!bench.Check(status.ok(), status.ToString())) return;
    Judge(bench, model.name, model.identity, result, prompts->size());
  }
}

}  // namespace prefixd::bench
