// Descriptors that differ in one field by chance: each another space, a miss, and explained.
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "bench/features.h"
#include "block/page_layout.h"
#include "block/space_identity.h"
#include "cache/cache.h"

namespace prefixd::bench {
namespace {

using block::SpaceIdentity;
using Random = std::mt19937_64;

SpaceIdentity Original() {
  SpaceIdentity identity;
  identity.model = "descriptor";
  identity.weights_digest[0] = std::byte{1};
  identity.tokenizer_digest[0] = std::byte{2};
  identity.rope = {
      .theta = 10000, .scaling = "yarn", .scaling_params = {8, 1, 4, 8192}, .rotary_dims = 64};
  identity.tenant = "local";
  identity.block_tokens = 64;
  block::LayerGroup group;
  group.name = "full.0";
  group.layers = {0, 1};
  group.kv_heads = 2;
  group.key_dim = group.value_dim = 64;
  const quant::TensorFormat eight = quant::MlxAffineFormat(8, 64, quant::Dtype::kF16);
  group.ladder = {{eight, eight}};
  identity.groups = {group};
  return identity;
}

// 1 to `limit`, another than `value`.
uint32_t Other(uint32_t value, uint32_t limit, Random& random) {
  const auto other = static_cast<uint32_t>(1 + random() % limit);
  return other == value ? other + 1 : other;
}

void Flip(base::Digest256& digest, Random& random) {
  digest[random() % digest.size()] ^= static_cast<std::byte>(1 + random() % 255);
}

struct Mutation {
  const char* field;
  std::function<void(SpaceIdentity&, Random&)> apply;
};

const std::vector<Mutation>& Mutations() {
  using S = SpaceIdentity;
  using R = Random;
  static const std::vector<Mutation> all = {
      {"model", [](S& s, R& r) { s.model += std::to_string(r()); }},
      {"weights_digest", [](S& s, R& r) { Flip(s.weights_digest, r); }},
      {"adapter_digest", [](S& s, R& r) { Flip(s.adapter_digest, r); }},
      {"tokenizer_digest", [](S& s, R& r) { Flip(s.tokenizer_digest, r); }},
      {"rope.theta", [](S& s, R& r) { s.rope.theta += 1 + static_cast<double>(r() % 1'000'000); }},
      {"rope.scaling", [](S& s, R& r) { s.rope.scaling += std::to_string(r() % 1'000'000); }},
      {"rope.scaling_params",
       [](S& s, R& r) {
         s.rope.scaling_params[r() % 4] += 1e-6 * static_cast<double>(1 + r() % 1'000'000'000);
       }},
      {"rope.rotary_dims",
       [](S& s, R& r) { s.rope.rotary_dims = 2 * Other(s.rope.rotary_dims / 2, 128, r); }},
      {"rope.key_after_rope", [](S& s, R&) { s.rope.key_after_rope ^= true; }},
      {"salt", [](S& s, R& r) { s.salt += std::to_string(r()); }},
      {"block_tokens", [](S& s, R& r) { s.block_tokens = r() % 2 == 0 ? 32 : 128; }},
      {"groups[0].name", [](S& s, R& r) { s.groups[0].name += std::to_string(r() % 1'000'000); }},
      {"groups[0].layers",
       [](S& s, R& r) { s.groups[0].layers[1] = Other(s.groups[0].layers[1], 1000, r) + 1; }},
      {"groups[0].kv_heads",
       [](S& s, R& r) { s.groups[0].kv_heads = Other(s.groups[0].kv_heads, 64, r); }},
      {"groups[0].key_dim",
       [](S& s, R& r) { s.groups[0].key_dim = 64 * Other(s.groups[0].key_dim / 64, 8, r); }},
      {"groups[0].value_dim",
       [](S& s, R& r) { s.groups[0].value_dim = 64 * Other(s.groups[0].value_dim / 64, 8, r); }},
      {"groups[0].ladder[0].key.bits",
       [](S& s, R& r) {
         s.groups[0].ladder[0].key.bits = std::array<uint8_t, 5>{2, 3, 4, 5, 6}[r() % 5];
       }},
      {"groups[0].ladder[0].value.bits",
       [](S& s, R& r) {
         s.groups[0].ladder[0].value.bits = std::array<uint8_t, 5>{2, 3, 4, 5, 6}[r() % 5];
       }},
      {"groups[0].ladder[0].key.group_size",
       [](S& s, R&) { s.groups[0].ladder[0].key.group_size = 32; }},
      {"groups[0].ladder[0].key.rotation",
       [](S& s, R&) { s.groups[0].ladder[0].key.rotation = quant::Rotation::kHadamard; }},
      {"groups[0].ladder[0].value.layout",
       [](S& s, R&) { s.groups[0].ladder[0].value.layout = quant::Layout::kTiled; }}};
  return all;
}

struct Seen {
  uint64_t descriptors = 0, false_hits = 0, unexplained = 0;
};

void Compare(const SpaceIdentity& original, const Mutation& mutation, const SpaceIdentity& changed,
             Seen* seen) {
  ++seen->descriptors;
  seen->false_hits += block::IdOf(changed) == block::IdOf(original);
  seen->unexplained +=
      block::DifferingFields(original, changed) != std::vector<std::string>{mutation.field};
}

// Opened beside a space that holds `tokens`: what an Acquire finds there.
void Ask(cache::Cache& cache, block::SessionId session, const SpaceIdentity& changed,
         const std::vector<block::Token>& tokens, Seen* seen) {
  ++seen->descriptors;
  const auto opened = cache.OpenSpace(session, changed);
  if (!opened.ok()) {  // no such model can be: as good as a miss, and the reason names the field
    seen->unexplained += opened.status().message().empty();
    return;
  }
  seen->unexplained += opened->created && opened->differing_fields.empty();
  cache::Request request;
  request.space = opened->space;
  request.tokens = tokens;
  const auto match = cache.Match(session, request);
  seen->false_hits += !match.ok() || match->matched_tokens > 0;
}

absl::Status StoreOne(cache::Cache& cache, block::SessionId session, block::SpaceHandle space,
                      const block::LayerGroup& group, const std::vector<block::Token>& tokens) {
  auto plan = cache.Reserve(
      session, {.space = space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}});
  if (!plan.ok()) return plan.status();
  const auto count = static_cast<uint32_t>(tokens.size());
  const std::vector<std::byte> page(block::LayoutOfPage(group, 0, count).page_bytes);
  absl::Status put = cache.PutPage(
      session, plan->reservation,
      {.tokens = count, .page_bytes = page.size(), .xxh3 = base::Xxh3(page), .data = page},
      std::chrono::steady_clock::now() + std::chrono::seconds(10));
  if (!put.ok()) return put;
  return cache
      .Commit(session,
              {.reservation = plan->reservation, .tokens = count, .sequence_end = true, .ends = {}})
      .status();
}

void JudgeSeen(Bench& bench, const std::string& name, const Seen& seen) {
  bench.Judge({.name = name,
               .ours = absl::StrCat(seen.false_hits, " false hits"),
               .reference = absl::StrCat(seen.descriptors, " descriptors"),
               .measure = "false hits",
               .seen = static_cast<double>(seen.false_hits),
               .limit = 0,
               .runs = seen.descriptors});
  bench.Judge({.name = name + ", explained by field",
               .ours = absl::StrCat(seen.descriptors - seen.unexplained, " explained"),
               .reference = absl::StrCat(seen.descriptors, " descriptors"),
               .measure = "unexplained",
               .seen = static_cast<double>(seen.unexplained),
               .limit = 0,
               .runs = seen.descriptors});
}

}  // namespace

void FeaturesDescriptors(Bench& bench) {
  const SpaceIdentity original = Original();
  const uint64_t count = bench.Parameter("descriptors", 500, 100'000, 100'000);
  Random random(20261122);
  Seen compared;
  const auto mutate = [&](SpaceIdentity* changed) -> const Mutation& {
    const Mutation& mutation = Mutations()[random() % Mutations().size()];
    mutation.apply(*changed, random);
    return mutation;
  };
  for (uint64_t i = 0; i < count; ++i) {
    SpaceIdentity changed = original;
    const Mutation& mutation = mutate(&changed);
    Compare(original, mutation, changed, &compared);
  }
  JudgeSeen(bench, "mutated descriptors", compared);

  cache::Options options;
  options.ram_budget_bytes = uint64_t{64} << 20;
  auto cache = cache::Cache::Open(options);
  if (!bench.Check(cache.ok(), cache.status().ToString())) return;
  const block::SessionId session = (*cache)->BeginSession("features");
  const auto opened = (*cache)->OpenSpace(session, original);
  if (!bench.Check(opened.ok(), opened.status().ToString())) return;
  const std::vector<block::Token> tokens(32, 7);
  const absl::Status stored = StoreOne(**cache, session, opened->space, original.groups[0], tokens);
  if (!bench.Check(stored.ok(), stored.ToString())) return;
  Seen asked;
  for (uint64_t i = 0, spaces = bench.Parameter("spaces", 50, 500, 2'000); i < spaces; ++i) {
    SpaceIdentity changed = original;
    mutate(&changed);
    Ask(**cache, session, changed, tokens, &asked);
  }
  JudgeSeen(bench, "spaces of mutated descriptors", asked);
}

}  // namespace prefixd::bench
