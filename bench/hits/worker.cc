// A worker process of `hits`: acquires and releases one prefix for as long as it is told to.
#include "bench/hits/worker.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/common/child_roles.h"
#include "bench/common/partner.h"
#include "bench/common/patience.h"
#include "bench/common/timing.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kStoredTokens = 64;  // a store: one block behind the prefix
constexpr uint64_t kHitsAStore = 8;     // of a worker that stores as well
constexpr uint64_t kSeedOfStores = 1'000'000;
constexpr char kTrace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

float ElementOf(uint32_t position) { return static_cast<float>(position % 512) / 64; }

struct Order {
  uint32_t tokens = 0;
  double us = 0;
  bool stores = false;
  bool by_grpc = false;
};

class HitsWorker {
 public:
  HitsWorker(Space space, uint64_t number, std::vector<uint32_t> tokens)
      : space_(std::move(space)), number_(number), tokens_(std::move(tokens)) {}

  // Compares the last block once, before anything is timed.
  std::string Verify() {
    const auto size = static_cast<uint32_t>(tokens_.size());
    Lease lease = space_.Acquire(tokens_, {.deadline = kPatience});
    if (lease.WaitAll() != size) return ShortOf(lease, size);
    return HasStoredRows(lease, size, space_.block_tokens()) ? "" : "acquire: wrong bytes";
  }
  nlohmann::json Run(const Order& order) {
    // Direct calls carry no trace.
    if (const Status status = SetTrace(order.by_grpc ? kTrace : ""); !status.ok())
      return {{"error", status.message}};
    std::vector<double> us;
    uint64_t stored = 0;
    const double start = NowMicros();
    for (double now = start; now - start < order.us;) {
      if (std::string error = Hit(order.tokens, &us); !error.empty()) return {{"error", error}};
      if (order.stores && us.size() % kHitsAStore == 0) {
        if (const Status status = Store(order.tokens); !status.ok())
          return {{"error", status.message}};
        ++stored;
      }
      now = NowMicros();
    }
    return {{"error", ""}, {"us", NowMicros() - start}, {"stored", stored}, {"hits_us", us}};
  }

 private:
  static std::string ShortOf(const Lease& lease, uint32_t tokens) {
    return "acquire: " + std::to_string(lease.restorable_tokens()) + " of " +
           std::to_string(tokens) + " tokens " + lease.match().why_shorter + " " +
           lease.match().status.message;
  }
  // From the tokens to knowing that all can be read. Releasing is part of the rate, not of this.
  std::string Hit(uint32_t tokens, std::vector<double>* us) {
    const double start = NowMicros();
    Lease lease = space_.Acquire(std::span(tokens_).first(tokens), {.deadline = kPatience});
    if (lease.WaitAll() != tokens) return ShortOf(lease, tokens);
    us->push_back(NowMicros() - start);
    return "";
  }
  Status Store(uint32_t tokens) {
    std::vector<uint32_t> longer(tokens_.begin(), tokens_.begin() + tokens);
    const std::vector<uint32_t> own =
        TokensOf({.seed = kSeedOfStores * (number_ + 1) + stores_++, .tokens = kStoredTokens});
    longer.insert(longer.end(), own.begin(), own.end());
    return StoreRows(space_, longer);
  }

  Space space_;
  const uint64_t number_;
  const std::vector<uint32_t> tokens_;
  uint64_t stores_ = 0;
};

}  // namespace

const Geometry& HitsGeometry() {
  static const Geometry geometry{.model = "4 KiB a token", .layers = 2, .kv_heads = 4, .dim = 128};
  return geometry;
}

Status StoreRows(Space& space, std::span<const uint32_t> tokens) {
  const Geometry& geometry = HitsGeometry();
  Plan plan = space.Reserve(tokens, {.deadline = kPatience});
  if (!plan.status().ok()) return plan.status();
  const std::vector<TokenRun> runs(plan.missing().begin(), plan.missing().end());
  for (const TokenRun& run : runs) {
    const uint32_t count = run.end - run.begin;
    std::vector<float> rows(size_t{geometry.kv_heads} * count * geometry.dim);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = ElementOf(run.begin + static_cast<uint32_t>(i / geometry.dim % count));
    }
    for (int layer = 0; layer < static_cast<int>(geometry.layers); ++layer) {
      const Status wrote =
          plan.WriteRows(layer, run.begin, count, {.data = rows.data()}, {.data = rows.data()});
      if (!wrote.ok()) return wrote;
    }
    const Result<CommitInfo> stored = plan.Commit(run.end, {.deadline = kPatience});
    if (!stored.ok()) return stored.status;
  }
  return {};
}

bool HasStoredRows(Lease& lease, uint32_t tokens, uint32_t block_tokens) {
  const Geometry& geometry = HitsGeometry();
  const uint32_t begin = tokens - block_tokens;
  std::vector<float> key(size_t{geometry.kv_heads} * block_tokens * geometry.dim), value = key;
  for (int layer = 0; layer < static_cast<int>(geometry.layers); ++layer) {
    if (!lease.GatherRows(layer, begin, block_tokens, {.data = key.data()}, {.data = value.data()})
             .ok())
      return false;
    for (size_t i = 0; i < key.size(); ++i) {
      const float right = ElementOf(begin + static_cast<uint32_t>(i / geometry.dim % block_tokens));
      if (std::abs(key[i] - right) > 0.01F || std::abs(value[i] - right) > 0.01F) return false;
    }
  }
  return true;
}

int RunHitsWorker(const nlohmann::json& plan) {
  const uint64_t number = plan.at("number");
  Client client({.address = plan.at("address"),
                 .name = "hits-" + std::to_string(number),
                 .connect_deadline = kPatience,
                 .staging_bytes = uint64_t{4} << 20});
  Result<Space> space = client.OpenSpace(SpecOf(HitsGeometry()));
  if (!space.ok() || !client.WaitAttached(kPatience)) return 1;
  HitsWorker worker(std::move(space.value()), number,
                    TokensOf({.seed = plan.at("seed"), .tokens = plan.at("tokens")}));
  TellParent({{"error", worker.Verify()}});
  for (std::string line; HearParent(&line);) {
    const nlohmann::json order = nlohmann::json::parse(line);
    TellParent(
        worker.Run({order.at("tokens"), order.at("us"), order.at("stores"), order.at("by_grpc")}));
  }
  return 0;
}

}  // namespace prefixd::bench
