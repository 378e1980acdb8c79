// Five ways to meet a stored sequence, in four formats, from three tiers: the slice of the bytes
// that were stored.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/checksum.h"
#include "base/status.h"
#include "bench/features.h"
#include "bench/own_cache.h"
#include "block/page_layout.h"
#include "cache/cache.h"

namespace prefixd::bench {
namespace {

using Bytes = std::vector<std::byte>;
constexpr uint32_t kStored = 280, kBlock = 64;

struct Shape {
  const char* name;
  uint32_t keep, more;
};
constexpr Shape kShapes[] = {{"exact", kStored, 0},
                             {"supersequence", 44, 0},
                             {"supersequence at a border", 256, 0},
                             {"prefix", kStored, 30},
                             {"lcp", 157, 30}};

struct Mode {
  const char* name;
  quant::KvFormat format;
};
std::vector<Mode> Modes() {
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const auto mlx = [](uint8_t bits) {
    return quant::MlxAffineFormat(bits, 64, quant::Dtype::kF16);
  };
  return {{"raw", {raw, raw}},
          {"8", {mlx(8), mlx(8)}},
          {"4", {mlx(4), mlx(4)}},
          {"8/4", {mlx(8), mlx(4)}}};
}

enum class Tier { kRam, kSsd, kRestarted };
constexpr std::pair<Tier, const char*> kTiers[] = {
    {Tier::kRam, "RAM"}, {Tier::kSsd, "SSD"}, {Tier::kRestarted, "restarted"}};

base::Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

std::vector<block::Token> TokensOf(uint64_t seed, uint32_t count) {
  std::mt19937_64 random(seed);
  std::vector<block::Token> tokens(count);
  for (block::Token& token : tokens) token = static_cast<block::Token>(random() % 50'000);
  return tokens;
}

// Whole pages as a worker would send them; of the padding of a partial one zeros.
Bytes PageOf(const block::LayerGroup& group, uint64_t seed, uint32_t tokens) {
  std::mt19937_64 random(seed);
  Bytes whole(block::LayoutOfPage(group, 0, kBlock).page_bytes);
  for (size_t i = 0; i + 8 <= whole.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(whole.data() + i, &word, 8);
  }
  if (tokens == kBlock) return whole;
  Bytes page(block::LayoutOfPage(group, 0, tokens).page_bytes);
  block::CutPage(group, 0, whole.data(), kBlock, tokens, page.data());
  return page;
}

class Pages : public cache::FetchSink {
 public:
  bool Page(const cache::PagePiece& piece) override {
    Bytes& page = pages[piece.first_token];
    page.insert(page.end(), piece.data.begin(), piece.data.end());
    return true;
  }
  bool Ready(const cache::GroupReady&) override { return true; }
  std::map<uint32_t, Bytes> pages;
};

// A cache with one space of one group in one format, and what was stored in it.
class Store {
 public:
  Store(const Mode& mode, std::string directory) : directory_(std::move(directory)) {
    group_.name = "full.0";
    group_.layers = {0, 1};
    group_.kv_heads = 2;
    group_.key_dim = group_.value_dim = 64;
    group_.ladder = {mode.format};
    identity_.model = "shapes";
    identity_.weights_digest[0] = std::byte{1};
    identity_.block_tokens = kBlock;
    identity_.groups = {group_};
  }
  absl::Status Open() {
    own_ = {};
    PREFIXD_ASSIGN_OR_RETURN(own_, OpenOwnCache(SmallSsdCache(directory_), identity_));
    return absl::OkStatus();
  }
  absl::Status Put(uint64_t seed, uint32_t count) {
    const std::vector<block::Token> tokens = TokensOf(seed, count);
    PREFIXD_ASSIGN_OR_RETURN(
        const block::ReservePlan plan,
        own_.cache->Reserve(
            own_.session,
            {.space = own_.space, .tokens = tokens, .content = {}, .groups = {}, .writable = {}}));
    for (const block::BlockPlan& block : plan.blocks) {
      const Bytes page = PageOf(group_, seed * 1000 + block.first_token, block.tokens);
      PREFIXD_RETURN_IF_ERROR(own_.cache->PutPage(own_.session, plan.reservation,
                                                  {.first_token = block.first_token,
                                                   .tokens = block.tokens,
                                                   .page_bytes = page.size(),
                                                   .xxh3 = base::Xxh3(page),
                                                   .data = page},
                                                  Soon()));
    }
    return own_.cache
        ->Commit(
            own_.session,
            {.reservation = plan.reservation, .tokens = count, .sequence_end = true, .ends = {}})
        .status();
  }
  absl::Status MoveTo(Tier tier) {
    if (tier == Tier::kRam) return absl::OkStatus();
    own_.cache->Flush(Soon());
    if (tier == Tier::kRestarted) return Open();
    for (uint64_t i = 0; Evicted() < uint64_t{4} << 20; ++i)
      PREFIXD_RETURN_IF_ERROR(Put(1000 + i, 20 * kBlock));
    return absl::OkStatus();
  }
  // Every byte of the hit is that of the stored page's first tokens, from the tier that is meant.
  absl::StatusOr<bool> IsTheSlice(uint64_t seed, const Shape& shape, Tier tier) {
    const std::vector<block::Token> stored = TokensOf(seed, kStored);
    cache::Request request;
    request.space = own_.space;
    request.tokens.assign(stored.begin(), stored.begin() + shape.keep);
    for (uint32_t i = 0; i < shape.more; ++i) request.tokens.push_back(70'000 + i);
    PREFIXD_ASSIGN_OR_RETURN(const cache::Acquired acquired,
                             own_.cache->Acquire(own_.session, request, Soon()));
    bool right = acquired.match.restorable_tokens == shape.keep &&
                 (acquired.match.ssd_bytes > 0) == (tier != Tier::kRam);
    Pages got;
    PREFIXD_RETURN_IF_ERROR(own_.cache->Fetch(
        own_.session, {.lease = acquired.lease, .groups = {}, .from_token = 0}, Soon(), &got));
    for (uint32_t first = 0; first < shape.keep; first += kBlock) {
      const uint32_t tokens = std::min(kBlock, kStored - first);
      const uint32_t wanted = std::min(tokens, shape.keep - first);
      const Bytes whole = PageOf(group_, seed * 1000 + first, tokens);
      Bytes slice(block::LayoutOfPage(group_, 0, wanted).page_bytes);
      block::CutPage(group_, 0, whole.data(), tokens, wanted, slice.data());
      right &= got.pages[first] == slice;
    }
    PREFIXD_RETURN_IF_ERROR(own_.cache->Release(own_.session, {.lease = acquired.lease}));
    return right;
  }

 private:
  uint64_t Evicted() const {
    for (const block::NamedCount& count : own_.cache->GetStats().counters) {
      if (count.name == "bytes.evicted") return count.value;
    }
    return 0;
  }

  const std::string directory_;
  block::LayerGroup group_;
  block::SpaceIdentity identity_;
  OwnCache own_;
};

}  // namespace

void FeaturesShapes(Bench& bench) {
  uint64_t cases = 0, right = 0;
  uint64_t short_cases = 0, short_right = 0;  // 44 of 280 tokens in 8 bits
  for (const Mode& mode : Modes()) {
    for (const auto& [tier, name] : kTiers) {
      Store store(mode, absl::StrCat(bench.directory(), "/shapes-", cases));
      absl::Status status = store.Open();
      for (uint64_t i = 0; i < std::size(kShapes) && status.ok(); ++i)
        status = store.Put(i + 1, kStored);
      if (status.ok()) status = store.MoveTo(tier);
      for (uint64_t i = 0; i < std::size(kShapes) && status.ok(); ++i) {
        const auto same = store.IsTheSlice(i + 1, kShapes[i], tier);
        ++cases;
        status = same.status();
        const bool is_short = std::string_view(mode.name) == "8" && kShapes[i].keep == 44;
        short_cases += is_short;
        if (same.ok() && *same) {
          ++right;
          short_right += is_short;
        } else {
          bench.Note(absl::StrCat(mode.name, " ", kShapes[i].name, " from ", name, " is wrong"));
        }
      }
      if (!bench.Check(status.ok(), status.ToString())) return;
    }
  }
  bench.Judge({.name = "shapes of match x formats x tiers",
               .ours = absl::StrCat(right, " the slice of what was stored"),
               .reference = absl::StrCat(cases, " cases"),
               .measure = "wrong",
               .seen = static_cast<double>(cases - right),
               .limit = 0,
               .runs = cases});
  bench.Judge({.name = "44 of 280 tokens in 8 bits, group 64",
               .ours = absl::StrCat(short_right, " are 44 tokens of the stored bytes"),
               .reference = absl::StrCat(short_cases, " tiers"),
               .measure = "wrong",
               .seen = static_cast<double>(short_cases - short_right),
               .limit = 0,
               .runs = short_cases});
}

}  // namespace prefixd::bench
