// Many query rows: how many float operations a second, against those that a core can do in
// registers.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "bench/common/timing.h"
#include "bench/kernels/fma_peak.h"
#include "bench/kernels/kernels.h"

namespace prefixd::bench {
namespace {

using enum kernels::AttentionMode;

struct PrefillCase {
  KernelFormat format;
  KvShape shape;
  uint32_t rows = 0, query_heads = 32;
  uint64_t rounds = 0;
  double at_least = 0;  // of the f32 FMA peak in mode fast prefill; 0 = promises nothing
  std::string name() const {
    return absl::StrCat(
        "prefill ", format.name, " ", rows, " x ", shape.tokens,
        query_heads == 32 ? "" : absl::StrCat(" (", query_heads, " heads of ", shape.dim, ")"));
  }
};

void Prefill(Bench& bench, KernelMemory& memory, const PrefillCase& what) {
  const std::optional<KvPages> pages = FillPages(bench, memory.arena(), what.shape);
  if (!pages) return;
  const auto call = [&](kernels::AttentionMode mode) {
    return AttentionCall(*pages,
                         {.query_rows = what.rows, .query_heads = what.query_heads, .mode = mode});
  };
  AttentionCall fast = call(kFastPrefill), precise = call(kPrecise);
  const double error = fast.Error(), precise_error = precise.Error();
  if (!bench.Check(error <= kFastError && precise_error <= kPreciseError,
                   absl::StrCat(what.name(), ": relative error ", error,
                                " of exact attention, in precise mode ", precise_error))) {
    return;
  }
  const auto flop = static_cast<uint64_t>(fast.flop());
  uint64_t done = 0;
  const Rounds seen = TakeTurns({{what.name(), flop, [&] { fast.Run(); }},
                                 {"fma", flop, [&] { done = MultiplyAddFloats(flop); }},
                                 {"precise", flop, [&] { precise.Run(); }}},
                                what.rounds);
  bench.Check(done >= flop, "the float operations were not done");
  if (!bench.Check(fast.status().ok() && precise.status().ok(), fast.status().ToString())) return;
  const double ours = seen.bytes_per_s(0), peak = seen.bytes_per_s(1), ratio = seen.RateRatio(0, 1);
  const Row exact{what.name() + " precise",
                  {{"rate_flop_per_s", seen.bytes_per_s(2)},
                   {"of_f32_fma_ratio", seen.RateRatio(2, 1)},
                   {"error_percent", 100 * precise_error}}};
  bench.Add({what.name(),
             {{"median_us", seen.median_us(0)},
              {"spread_percent", seen.RateSpreadPercent(0, 1)},
              {"rate_flop_per_s", ours},
              {"f32_fma_flop_per_s", peak},
              {"of_f32_fma_ratio", ratio},
              {"error_percent", 100 * error}}});
  if (what.at_least == 0) return bench.Add(exact);
  JudgeRate(bench, seen,
            {.name = "K-" + what.name(),
             .at_least = what.at_least,
             .reference = {},
             .ours = absl::StrCat(ToText(Figure{"attend_flop_per_s", ours}),
                                  absl::StrFormat(" (error %.2f %%)", 100 * error)),
             .beside = ToText(Figure{"f32_FMA_peak_flop_per_s", peak})});
  Tell(bench, exact);
}

}  // namespace

void KernelsPrefill(Bench& bench, KernelMemory& memory) {
  const uint64_t rounds = bench.Parameter("prefill_rounds", 2, 5, 11);
  const auto tokens = static_cast<uint32_t>(bench.Parameter("prefill_tokens", 512, 4096));
  const auto rows = static_cast<uint32_t>(bench.Parameter("prefill_rows", 64, 256));
  for (const KernelFormat& format : KernelFormats()) {
    const bool promised = format.name.starts_with("8/");
    if (bench.targets_only() && !promised) continue;
    Prefill(bench, memory,
            {.format = format,
             .shape = {.format = format.format, .tokens = tokens},
             .rows = rows,
             .rounds = rounds,
             .at_least = promised ? 1.7 : 0});
    if (bench.targets_only()) continue;
    // What the shipped model's worker asks for in a late step of its longest prompts.
    Prefill(bench, memory,
            {.format = format,
             .shape = {.format = format.format,
                       .kv_heads = 2,
                       .dim = 64,
                       .tokens = bench.smoke() ? 256u : 7488u},
             .rows = 64,
             .query_heads = 8,
             .rounds = rounds});
  }
}

}  // namespace prefixd::bench
