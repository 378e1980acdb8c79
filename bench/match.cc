// match: how long the index takes to find a long prompt among many blocks, against a memcmp of as
// many token bytes. One thread; answers are checked against a comparison with every stored prompt.
#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include "bench/reference.h"
#include "bench/timing.h"
#include "bench/workloads.h"
#include "index/prefix_index.h"

namespace prefixd::bench {
namespace {

using Tokens = std::vector<block::Token>;
constexpr uint32_t kBlockTokens = 64, kVocabulary = 128'000;
constexpr uint64_t kPageBytes = uint64_t{1} << 20;

class Prompts {
 public:
  explicit Prompts(uint32_t tokens) : tokens_(tokens) {}

  // The first part of `base` up to a random token of its first `share`, fresh tokens from there on.
  Tokens Fork(const Tokens& base, double share) {
    const auto limit = static_cast<uint32_t>(share * static_cast<double>(base.size()));
    const size_t keep = limit == 0 ? 0 : random_() % limit;
    Tokens prompt(base.begin(), base.begin() + static_cast<std::ptrdiff_t>(keep));
    while (prompt.size() < tokens_)
      prompt.push_back(static_cast<block::Token>(random_() % kVocabulary));
    return prompt;
  }
  uint64_t Random() { return random_(); }

 private:
  const uint32_t tokens_;
  std::mt19937_64 random_{1};
};

// An index with one space of one group; its pages are names without bytes.
class Stored {
 public:
  Stored() : space_(index_.AddSpace({.id = {}, .block_tokens = kBlockTokens, .rungs = {1}})) {}

  absl::Status Store(const Tokens& prompt) {
    const auto reserved = index_.Reserve(space_, {prompt, {}}, {}, block::SessionId{1});
    if (!reserved.ok()) return reserved.status();
    const block::ReservationId id = reserved->plan.reservation;
    for (uint32_t i = 0; i < reserved->plan.blocks.size(); ++i) {
      if (reserved->plan.blocks[i].state != block::BlockState::kYours) continue;
      const index::NewPage page{.group = 0,
                                .rung = 0,
                                .extent = {.offset = blocks_++ * kPageBytes, .bytes = kPageBytes},
                                .check = 1,
                                .page_bytes = kPageBytes,
                                .payload_bytes = kPageBytes};
      if (const auto stored = index_.Publish(id, i, {&page, 1}); !stored.ok())
        return stored.status();
    }
    prompts_.push_back(prompt);
    return index_.CloseReservation(id);
  }
  block::MatchAnswer Match(const Tokens& prompt) const {
    return index_.Match(space_, {prompt, {}}, {});
  }
  // By comparing with every stored prompt.
  uint32_t CommonWithAny(const Tokens& prompt) const {
    std::ptrdiff_t longest = 0;
    for (const Tokens& stored : prompts_) {
      const auto differ = std::mismatch(prompt.begin(), prompt.end(), stored.begin(), stored.end());
      longest = std::max(longest, differ.first - prompt.begin());
    }
    return static_cast<uint32_t>(longest);
  }
  uint64_t blocks() const { return blocks_; }
  const std::vector<Tokens>& prompts() const { return prompts_; }
  uint64_t memory_bytes() const { return index_.Counts().memory_bytes; }

 private:
  index::PrefixIndex index_{index::PrefixIndex::Options{}};
  const block::SpaceHandle space_;
  std::vector<Tokens> prompts_;
  uint64_t blocks_ = 0;
};

void TimeQueries(Bench& bench, const Stored& stored, const std::string& name,
                 const std::vector<Tokens>& queries, uint64_t calls) {
  for (const Tokens& query : queries) {
    const uint32_t expected = stored.CommonWithAny(query);
    const uint32_t seen = stored.Match(query).restorable_tokens;
    if (!bench.Check(seen == expected, name + ": restorable " + std::to_string(seen) +
                                           " tokens, expected " + std::to_string(expected))) {
      return;
    }
  }
  const auto bytes = [](const Tokens& tokens) {
    return reinterpret_cast<const std::byte*>(tokens.data());
  };
  std::vector<double> ours, compare;
  bool same = true;
  for (uint64_t call = 0; call < calls; ++call) {
    const Tokens& query = queries[call % queries.size()];
    const double start = NowMicros();
    same &= stored.Match(query).restorable_tokens <= query.size();
    ours.push_back(NowMicros() - start);
    const Tokens copy = query;
    const double compare_start = NowMicros();
    same &= SameBytes(bytes(query), bytes(copy), query.size() * sizeof(block::Token));
    compare.push_back(NowMicros() - compare_start);
  }
  bench.Check(same, name + ": a copy is not the original");
  bench.Add({name,
             {{"p50_us", Quantile(ours, 0.5)},
              {"p99_us", Quantile(ours, 0.99)},
              {"spread_percent", Summarize(ours).spread_percent},
              {"memcmp_us", Quantile(compare, 0.5)},
              {"of_memcmp_ratio", Quantile(ours, 0.5) / std::max(Quantile(compare, 0.5), 1e-3)}}});
}

void RunAt(Bench& bench, uint64_t blocks, uint32_t tokens, uint64_t calls) {
  Prompts prompts(tokens);
  Stored stored;
  while (stored.blocks() < blocks) {
    const std::vector<Tokens>& known = stored.prompts();
    const Tokens base = known.empty() ? Tokens() : known[prompts.Random() % known.size()];
    const absl::Status status = stored.Store(prompts.Fork(base, 0.5));
    if (!bench.Check(status.ok(), status.ToString())) return;
  }
  constexpr size_t kQueries = 16;
  std::vector<Tokens> exact, diverging, unknown;
  for (size_t i = 0; i < kQueries; ++i) {
    exact.push_back(stored.prompts()[prompts.Random() % stored.prompts().size()]);
    diverging.push_back(prompts.Fork(exact.back(), 1));
    unknown.push_back(prompts.Fork({}, 0));
  }
  const std::string at = " at " + std::to_string(stored.blocks()) + " blocks";
  TimeQueries(bench, stored, "exact" + at, exact, calls);
  TimeQueries(bench, stored, "diverging" + at, diverging, calls);
  TimeQueries(bench, stored, "unknown" + at, unknown, calls);
  bench.Add({"index" + at, {{"memory_bytes", static_cast<double>(stored.memory_bytes())}}});
}

}  // namespace

void RunMatch(Bench& bench) {
  const auto tokens = static_cast<uint32_t>(bench.Parameter("prompt_tokens", 1024, 32'768));
  const uint64_t few = bench.Parameter("few_blocks", 64, 10'000);
  const uint64_t blocks = bench.Parameter("blocks", 256, 200'000);
  const uint64_t calls = bench.Parameter("calls", 32, 2'000);
  RunAt(bench, few, tokens, calls);
  RunAt(bench, blocks, tokens, calls);
}

}  // namespace prefixd::bench
