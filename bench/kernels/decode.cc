// One query row over a whole context: K and V as fast as they can be read?
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "bench/common/timing.h"
#include "bench/kernels/kernels.h"

namespace prefixd::bench {
namespace {

struct DecodeCase {
  KernelFormat format;
  uint32_t dim = 128;
  uint32_t tokens = 0;
  uint64_t rounds = 0;
  bool two_threads = false;  // beside it
  std::string name() const {
    return absl::StrCat("decode ", format.name, dim == 128 ? "" : absl::StrCat(" dim ", dim), " ",
                        tokens / 1024, "K");
  }
};

// What of one case took turns.
struct Decoded {
  Rounds rounds;
  size_t commit = 0, precise = 0, random = 0, read = 0;
  std::optional<size_t> two_threads, two_reads;
  double error = 0, precise_error = 0;

  double ratio(size_t side, size_t reference) const { return rounds.RateRatio(side, reference); }
  Figure rate(const std::string& name, size_t side) const {
    return {name + "_bytes_per_s", rounds.bytes_per_s(side)};
  }
};

constexpr auto kPrecise = kernels::AttentionMode::kPrecise;

bool CheckErrors(Bench& bench, const DecodeCase& what, const KvPages& pages, Decoded& seen) {
  AttentionCall fast(pages, {}), precise(pages, {.mode = kPrecise});
  const std::vector<float> exact = fast.Exact();
  fast.Run();
  precise.Run();
  seen.error = RelativeRms(fast.out(), exact);
  seen.precise_error = RelativeRms(precise.out(), exact);
  return bench.Check(seen.error <= kFastError && seen.precise_error <= kPreciseError,
                     absl::StrCat(what.name(), ": relative error ", seen.error,
                                  " of exact attention, in precise mode ", seen.precise_error));
}

std::optional<KvPages> Fill(Bench& bench, PageStore& store, const DecodeCase& what) {
  return FillPages(bench, store,
                   {.format = what.format.format, .dim = what.dim, .tokens = what.tokens});
}

std::optional<Decoded> Measure(Bench& bench, KernelMemory& memory, const DecodeCase& what) {
  const auto in_arena = Fill(bench, memory.arena(), what);
  Decoded seen;
  if (!in_arena || !CheckErrors(bench, what, *in_arena, seen)) return std::nullopt;

  // What one side read last must not be what the next one reads: it would come from a cache.
  const size_t apart = in_arena->tables() / 3;
  AttentionCall commit(*in_arena, {});
  AttentionCall precise(*in_arena, {.mode = kPrecise, .first_table = apart});
  AttentionCall random(*in_arena, {.order = PageOrder::kRandom, .first_table = apart / 2});
  AttentionCall two_threads(*in_arena, {.threads = 2, .first_table = 2 * apart});
  std::vector<Side> sides;
  const auto add = [&](Side side) {
    sides.push_back(std::move(side));
    return sides.size() - 1;
  };
  const uint64_t bytes = in_arena->table_bytes();
  seen.commit = add(commit.side("commit order"));
  seen.precise = add(precise.side("precise"));
  seen.random = add(random.side("random order"));
  seen.read = add(memory.StreamReadSide(bytes, 1));
  if (what.two_threads) {
    seen.two_threads = add(two_threads.side("two threads"));
    seen.two_reads = add(memory.StreamReadSide(bytes, 2));
  }
  seen.rounds = TakeTurns(sides, what.rounds);
  for (const AttentionCall* call : {&commit, &precise, &random, &two_threads}) {
    if (!bench.Check(call->status().ok(), call->status().ToString())) return std::nullopt;
  }
  return seen;
}

void AddRow(Bench& bench, const DecodeCase& what, const Decoded& seen) {
  std::vector<Figure> figures = {
      {"median_us", seen.rounds.median_us(seen.commit)},
      {"spread_percent", seen.rounds.RateSpreadPercent(seen.commit, seen.read)},
      seen.rate("rate", seen.commit),
      {"of_stream_read_ratio", seen.ratio(seen.commit, seen.read)},
      seen.rate("precise", seen.precise),
      seen.rate("random_order", seen.random),
      seen.rate("stream_read", seen.read)};
  if (seen.two_threads) {
    figures.push_back(seen.rate("two_threads", *seen.two_threads));
    figures.push_back(seen.rate("two_core_read", *seen.two_reads));
  }
  figures.push_back({"error_percent", 100 * seen.error});
  figures.push_back({"precise_error_percent", 100 * seen.precise_error});
  bench.Add({what.name(), std::move(figures)});
}

void Judge(Bench& bench, const DecodeCase& what, const Decoded& seen) {
  const auto text = [&](size_t side, double error) {
    return RateText("attend", seen.rounds.bytes_per_s(side)) +
           absl::StrFormat(" (error %.3g %%)", 100 * error);
  };
  const std::string name = "K-" + what.name();
  JudgeRate(bench, seen.rounds,
            {.name = name,
             .at_least = what.format.decode_floor,
             .reference = "stream read",
             .side = seen.commit,
             .reference_side = seen.read,
             .ours = text(seen.commit, seen.error)});
  if (what.format.name == "f16") return;
  JudgeRate(bench, seen.rounds,
            {.name = name + " precise",
             .at_least = 0.35,
             .reference = "stream read",
             .side = seen.precise,
             .reference_side = seen.read,
             .ours = text(seen.precise, seen.precise_error)});
  if (!seen.two_threads) return;
  JudgeRate(bench, seen.rounds,
            {.name = name + " random order",
             .at_least = 0.85,
             .reference = "commit order",
             .side = seen.random,
             .reference_side = seen.commit});
  JudgeRate(bench, seen.rounds,
            {.name = name + " 2 threads",
             .at_least = 0.70,
             .reference = "two-core stream read",
             .side = *seen.two_threads,
             .reference_side = *seen.two_reads});
}

void DecodeFormat(Bench& bench, KernelMemory& memory, const DecodeCase& what) {
  const std::optional<Decoded> seen = Measure(bench, memory, what);
  if (!seen) return;
  AddRow(bench, what, *seen);
  Judge(bench, what, *seen);
}

// Two kinds of pages, an arena file each, in turns: bytes/s against bytes/s, or time against time.
struct PairTarget {
  const DecodeCase& ours;
  const DecodeCase& reference;
  double at_least = 0;
  bool per_token = false;
};

void DecodePair(Bench& bench, KernelMemory& memory, const PairTarget& target) {
  const auto ours = Fill(bench, memory.arena(), target.ours);
  const auto reference = Fill(bench, memory.second_arena(), target.reference);
  Decoded ignored;
  if (!ours || !reference || !CheckErrors(bench, target.ours, *ours, ignored)) return;
  AttentionCall our_call(*ours, {}), reference_call(*reference, {});
  std::vector<Side> sides = {our_call.side("ours"), reference_call.side("reference")};
  if (target.per_token) sides[0].bytes = sides[1].bytes = target.ours.tokens;
  const Rounds seen = TakeTurns(sides, target.ours.rounds);
  const auto text = [&](size_t side, const DecodeCase& what) {
    return target.per_token ? absl::StrCat(what.format.name, " ", MicrosText(seen.median_us(side)))
                            : RateText(what.format.name + " dim " + absl::StrCat(what.dim),
                                       seen.bytes_per_s(side));
  };
  JudgeRate(
      bench, seen,
      {.name = absl::StrCat("K-", target.ours.name(), " against ", target.reference.format.name,
                            target.reference.dim == target.ours.dim
                                ? ""
                                : absl::StrCat(" dim ", target.reference.dim)),
       .at_least = target.at_least,
       .reference = {},
       .ours = text(0, target.ours),
       .beside = text(1, target.reference)});
}

void DecodePairs(Bench& bench, KernelMemory& memory, uint32_t tokens, uint64_t rounds) {
  const std::vector<KernelFormat> formats = KernelFormats();
  const DecodeCase k8v4{
      .format = FormatNamed(formats, "8/4 tiled"), .tokens = tokens, .rounds = rounds};
  for (const KernelFormat& format : formats) {
    const DecodeCase tiled{.format = format, .tokens = tokens, .rounds = rounds};
    if (format.name == "4/4 tiled") {
      DecodePair(bench, memory, {tiled, k8v4, 1, /*per_token=*/true});
    }
    DecodeCase rows = tiled;
    rows.format = RowsOf(format);
    if (rows.format.format == format.format) continue;
    DecodePair(bench, memory, {rows, tiled, 0.5});
  }
  for (const uint32_t dim : {64u, 256u}) {
    for (const KernelFormat& format : formats) {
      if (bench.quick() && format.name != "8/4 tiled" && format.name != "8/8 tiled") continue;
      const DecodeCase usual{.format = format, .tokens = tokens, .rounds = rounds};
      DecodeCase other = usual;
      other.dim = dim;
      DecodePair(bench, memory, {other, usual, 0.75});
    }
  }
}

}  // namespace

void KernelsDecode(Bench& bench, KernelMemory& memory) {
  const uint64_t rounds = bench.Parameter("decode_rounds", 2, 15, 41);
  const std::vector<KernelFormat> formats = KernelFormats();
  const KernelFormat k8v4 = FormatNamed(formats, "8/4 tiled");
  std::vector<uint32_t> lengths = {4096, 16384, 32768};
  if (bench.smoke()) lengths = {1024};
  for (const uint32_t tokens : lengths) {
    DecodeFormat(bench, memory,
                 {.format = k8v4, .tokens = tokens, .rounds = rounds, .two_threads = true});
  }
  bench.Note("pages: " + memory.arena().name());
  const uint32_t middle = lengths[lengths.size() / 2];
  for (const KernelFormat& format : formats) {
    if (format.name == k8v4.name) continue;
    for (const uint32_t tokens : lengths) {
      if (bench.quick() && tokens != middle) continue;
      DecodeFormat(bench, memory, {.format = format, .tokens = tokens, .rounds = rounds});
    }
  }
  DecodePairs(bench, memory, middle, rounds);
}

}  // namespace prefixd::bench
