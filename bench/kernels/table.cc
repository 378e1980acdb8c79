// Decode of a whole model's layers at growing lengths: from where on do fewer bits win?
#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"

#include "bench/common/timing.h"
#include "bench/kernels/kernels.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kLayers = 32;

// One format in a store of its own, so that formats can take turns.
struct Contestant {
  std::string name;
  std::unique_ptr<PageStore> store;
  std::optional<KvPages> pages;
  std::optional<AttentionCall> call;
};

bool Prepare(Bench& bench, Contestant& contestant, const KvShape& shape) {
  auto pages = KvPages::Fill(*contestant.store, shape);
  if (!bench.Check(pages.ok(), pages.status().ToString())) return false;
  contestant.call.reset();
  contestant.pages.emplace(*std::move(pages));
  contestant.call.emplace(*contestant.pages, AttentionCall::Options{});
  return true;
}

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

void KernelsTable(Bench& bench) {
  const uint64_t rounds = bench.Parameter("table_rounds", 2, 7, 21);
  const uint64_t store_bytes = bench.Parameter("table_store_bytes", 24ull << 20, 600ull << 20);
  std::vector<Contestant> contestants;
  const std::vector<KernelFormat> formats = KernelFormats();
  for (const char* name : {"f16", "8/4 tiled", "4/4 tiled"}) {
    Contestant& contestant = contestants.emplace_back();
    contestant.name = name;
    auto store = MakeArenaStore(FolderForArenas(bench), store_bytes);
    contestant.store = store.ok() ? *std::move(store) : MakePrivateStore(store_bytes);
  }
  std::vector<TableLength> lengths;
  for (const uint32_t tokens : TableLengths(bench.smoke())) {
    std::vector<Side> sides;
    for (Contestant& contestant : contestants) {
      const KernelFormat& format = FormatNamed(formats, contestant.name);
      if (!Prepare(bench, contestant, {.format = format.format, .tokens = tokens})) return;
      sides.push_back(contestant.call->side(contestant.name));
    }
    const Rounds seen = TakeTurns(sides, rounds);
    std::vector<Figure> figures;
    const auto words = [](std::string name) {
      std::replace(name.begin(), name.end(), ' ', '_');
      return name;
    };
    for (size_t i = 0; i < sides.size(); ++i) {
      const std::string name = words(contestants[i].name);
      const double token_us = kLayers * seen.median_us(i);
      figures.push_back({name + "_us", token_us});
      figures.push_back({name + "_tokens_per_s", 1e6 / token_us});
    }
    for (size_t i = 1; i < sides.size(); ++i) {
      figures.push_back(
          {words(contestants[i].name) + "_speedup_ratio", seen.median_us(0) / seen.median_us(i)});
    }
    lengths.push_back({.tokens = tokens,
                       .f16_us = kLayers * seen.median_us(0),
                       .mixed_us = kLayers * seen.median_us(1),
                       .four_us = kLayers * seen.median_us(2)});
    bench.Add({absl::StrCat("decode of ", kLayers, " layers, ", tokens, " tokens"), figures});
  }
  bench.Note(ToText(lengths));
}

}  // namespace prefixd::bench
