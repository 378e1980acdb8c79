// An engine that owns its KV memory: copying a hit out of the leased pages beside memcpy of as many
// bytes (G2), and storing it.
#include <chrono>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/patience.h"
#include "bench/common/stored_sequences.h"
#include "bench/common/timing.h"
#include "bench/share/share.h"

namespace prefixd::bench {
namespace {

// One tensor a layer for each of codes, scales and biases of K and V, [kv_heads][tokens][...].
class Engine {
 public:
  Engine(const Geometry& geometry, uint32_t tokens, bool filled)
      : geometry_(geometry),
        row_(BytesOfRow(SpecOf(geometry).layers[0].formats[0].key, geometry.dim)),
        tokens_(tokens),
        memory_(bytes()) {
    uint32_t state = 1;
    for (std::byte& byte : memory_) {
      state = state * 1664525 + 1013904223;
      byte = filled ? static_cast<std::byte>(state >> 24) : std::byte{0};
    }
  }
  uint64_t bytes() const { return geometry_.layers * 2 * tensor_bytes(); }
  std::byte* data() { return memory_.data(); }
  bool operator==(const Engine& other) const { return memory_ == other.memory_; }

  bool Write(const TokenRun& run, Plan* plan) {
    bool good = true;
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      good = good && plan->WritePacked(static_cast<int>(layer), run.begin, run.end - run.begin,
                                       ViewOf<PackedView>(layer, 0, run.begin),
                                       ViewOf<PackedView>(layer, 1, run.begin))
                         .ok();
    }
    return good;
  }
  bool Read(Lease* lease) {
    bool good = true;
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      good = good && lease
                         ->Gather(static_cast<int>(layer), 0, tokens_,
                                  ViewOf<MutablePackedView>(layer, 0, 0),
                                  ViewOf<MutablePackedView>(layer, 1, 0))
                         .ok();
    }
    return good;
  }

 private:
  uint64_t tensor_bytes() const {
    return uint64_t{geometry_.kv_heads} * tokens_ * (row_.codes + row_.scales + row_.biases);
  }
  // `tensor`: 0 is K, 1 is V.
  template <typename View>
  View ViewOf(uint32_t layer, uint32_t tensor, uint32_t begin) {
    const uint64_t rows = uint64_t{geometry_.kv_heads} * tokens_;
    std::byte* codes = memory_.data() + (layer * 2 + tensor) * tensor_bytes();
    std::byte* scales = codes + rows * row_.codes;
    return {.codes = codes + begin * row_.codes,
            .scales = scales + begin * row_.scales,
            .biases = scales + rows * row_.scales + begin * row_.biases,
            .codes_head_stride = size_t{tokens_} * row_.codes,
            .codes_token_stride = row_.codes,
            .scales_head_stride = size_t{tokens_} * row_.scales,
            .scales_token_stride = row_.scales};
  }

  const Geometry geometry_;
  const RowBytes row_;
  const uint32_t tokens_;
  std::vector<std::byte> memory_;
};

// Microseconds; below 0 when it failed.
double Store(const std::vector<uint32_t>& tokens, Space* space, Engine* engine) {
  const double start = NowMicros();
  Plan plan = space->Reserve(tokens, {.deadline = kPatience});
  bool good = plan.status().ok();
  for (const TokenRun run : plan.missing()) {
    good = good && engine->Write(run, &plan) && plan.Commit(run.end).ok();
  }
  good = good && plan.Commit(static_cast<uint32_t>(tokens.size()), {.sequence_end = true}).ok();
  return good ? NowMicros() - start : -1;
}

void JudgeGather(Bench& bench, uint64_t rounds, Lease* lease, Engine* engine) {
  const std::vector<std::byte> from(engine->bytes(), std::byte{1});
  std::vector<std::byte> to(engine->bytes(), std::byte{2});
  bool good = true;
  const uint64_t bytes = engine->bytes();
  const Rounds seen =
      TakeTurns({{"gather", bytes, [&] { good = engine->Read(lease) && good; }},
                 {"memcpy", bytes, [&] { std::memcpy(to.data(), from.data(), to.size()); }}},
                rounds);
  bench.Check(good && to == from, "gather: failed while it was timed");
  bench.Judge({.name = "gather a hit into the engine's tensors",
               .ours = MicrosText(seen.median_us(0)),
               .reference = "memcpy of " + BytesText(static_cast<double>(bytes)) + " " +
                            MicrosText(seen.median_us(1)),
               .seen = 1 / seen.RateRatio(0, 1),
               .limit = 1.3,
               .runs = rounds,
               .spread_percent = seen.RateSpreadPercent(0, 1)});
}

}  // namespace

void ShareGather(Bench& bench) {
  const auto tokens_count = static_cast<uint32_t>(bench.Parameter("gather_tokens", 200, 2000));
  const uint64_t layers = bench.Parameter("gather_layers", 2, 32);
  const uint64_t rounds = bench.Parameter("gather_rounds", 3, 15, 40);
  const Geometry geometry{.model = "meta-llama/Llama-3-8B",
                          .layers = static_cast<uint32_t>(layers),
                          .kv_heads = 8,
                          .dim = 128};
  Engine engine(geometry, tokens_count, true), back(geometry, tokens_count, false);
  const auto daemon = StartSharedDaemon(bench, "gather", 3 * engine.bytes() + 192 * kMiB);
  if (daemon == nullptr) return;
  Client client({.address = daemon->process->address(), .name = "share-gather"});
  bench.Check(client.WaitAttached(kPatience), "gather: not attached");
  Result<Space> space = client.OpenSpace(SpecOf(geometry));
  if (!bench.Check(space.ok(), space.status.message)) return;
  const std::vector<uint32_t> tokens = TokensOf({.seed = 1, .tokens = tokens_count});
  const double store_us = Store(tokens, &space.value(), &engine);
  if (!bench.Check(store_us > 0, "gather: storing failed")) return;
  bench.Note(absl::StrCat("stored from the engine's tensors: ",
                          RateText(static_cast<double>(engine.bytes()), store_us)));
  {
    Lease lease = space.value().Acquire(tokens, {.deadline = kPatience});
    if (!bench.Check(lease.WaitAll() == tokens_count, "gather: not all is restorable")) return;
    if (!bench.Check(back.Read(&lease) && back == engine, "gather: other bytes")) return;
    JudgeGather(bench, rounds, &lease, &back);
  }
  const absl::Status stopped = daemon->process->Stop();
  bench.Check(stopped.ok(), stopped.ToString());
}

}  // namespace prefixd::bench
