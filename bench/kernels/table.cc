// Decode of a whole model's layers at growing lengths: from where on do fewer bits win?
#include "absl/strings/str_cat.h"

#include "bench/common/timing.h"
#include "bench/kernels/kernels.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kLayers = 32;

std::string ToText(const std::vector<TableLength>& lengths) {
  const uint32_t crossover = Crossover(lengths);
  const std::string from = crossover == 0
                               ? "8/4 is not faster than f16 at the longest length measured"
                               : absl::StrCat("8/4 is faster than f16 from ", crossover,
                                              " tokens on, of the lengths measured");
  const TableLength& last = lengths.back();
  return absl::StrCat(from, "; at ", last.tokens, " tokens f16 takes ", MicrosText(last.f16_us),
                      ", 8/4 ", MicrosText(last.mixed_us), ", 4/4 ", MicrosText(last.four_us));
}

}  // namespace

std::vector<uint32_t> TableLengths(bool smoke) {
  if (smoke) return {256, 512};
  return {1024, 4096, 16384, 32768};
}

uint32_t Crossover(const std::vector<TableLength>& lengths) {
  uint32_t from = 0;
  for (auto length = lengths.rbegin(); length != lengths.rend(); ++length) {
    if (length->mixed_us >= length->f16_us) break;
    from = length->tokens;
  }
  return from;
}

void KernelsTable(Bench& bench, KernelMemory& memory) {
  const uint64_t rounds = bench.Parameter("table_rounds", 2, 7, 21);
  const std::vector<KernelFormat> formats = KernelFormats();
  std::vector<TableLength> lengths;
  for (const uint32_t tokens : TableLengths(bench.smoke())) {
    const auto token_us = [&](const char* name) {
      const std::optional<KvPages> pages = FillPages(
          bench, memory.arena(), {.format = FormatNamed(formats, name).format, .tokens = tokens});
      if (!pages) return 0.0;
      AttentionCall call(*pages, {});
      return kLayers * TakeTurns({call.side(name)}, rounds).median_us(0);
    };
    const TableLength& length = lengths.emplace_back(TableLength{.tokens = tokens,
                                                                 .f16_us = token_us("f16"),
                                                                 .mixed_us = token_us("8/4 tiled"),
                                                                 .four_us = token_us("4/4 tiled")});
    bench.Add({absl::StrCat("decode of ", kLayers, " layers, ", tokens, " tokens"),
               {{"f16_us", length.f16_us},
                {"8/4_us", length.mixed_us},
                {"4/4_us", length.four_us},
                {"f16_tokens_per_s", 1e6 / length.f16_us},
                {"8/4_tokens_per_s", 1e6 / length.mixed_us},
                {"4/4_tokens_per_s", 1e6 / length.four_us},
                {"8/4_speedup_ratio", length.f16_us / length.mixed_us},
                {"4/4_speedup_ratio", length.f16_us / length.four_us}}});
  }
  bench.Note(ToText(lengths));
}

}  // namespace prefixd::bench
