// Models whose layers are not all full attention, on real agent prompts through the cache in this
// process: how many of the tokens that a model of attention alone would find they can use, and what
// that costs in bytes. The budget is tight: snapshots and sliding pages that nobody can need have
// to go. tests/model and tests/index check each usable length.
#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

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

// Asks for all but the last token, and stores what the plan wants.
absl::Status Play(OwnCache& own, const Tokens& prompt, std::set<Tokens>* stored, Result* result) {
  const auto size = static_cast<uint32_t>(prompt.size());
  const uint32_t shared = Shared(*stored, prompt);
  cache::Request request;
  request.space = own.space();
  request.tokens = prompt;
  request.max_tokens = size - 1;
  PREFIXD_ASSIGN_OR_RETURN(const cache::Acquired acquired,
                           own.cache().Acquire(own.session(), request, OwnCache::Soon()));
  const uint32_t usable = acquired.match.restorable_tokens;
  result->requested += size;
  result->full_hits += std::min(shared, size - 1);
  result->hits += usable;
  result->stored += size - shared;
  PREFIXD_RETURN_IF_ERROR(own.Store(prompt, usable));
  stored->insert(prompt);
  uint64_t held = 0;
  for (const block::SpaceSummary& space : own.cache().ListSpaces()) held += space.ram_payload_bytes;
  result->held_bytes = std::max(result->held_bytes, held);
  if (!acquired.lease) return absl::OkStatus();
  return own.cache().Release(own.session(), {.lease = acquired.lease, .used_tokens = usable});
}

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
    cache::Options options;
    options.ram_budget_bytes = model.ram_bytes;
    const auto own = OwnCache::Open(options, model.identity);
    absl::Status status = own.status();
    std::set<Tokens> stored;
    Result result;
    for (size_t i = 0; status.ok() && i < prompts->size(); ++i) {
      status = Play(**own, (*prompts)[i], &stored, &result);
    }
    if (!bench.Check(status.ok(), status.ToString())) return;
    Judge(bench, model.name, model.identity, result, prompts->size());
  }
}

}  // namespace prefixd::bench
