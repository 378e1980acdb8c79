// One query row over a whole context: K and V as fast as they can be read?
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

#include "bench/experiment.h"
#include "bench/kernels.h"
#include "bench/timing.h"

namespace prefixd::bench {
namespace {

struct DecodeCase {
  KernelFormat format;
  uint32_t dim = 128;
  uint32_t tokens = 0;
  uint32_t block_tokens = 64;
  uint64_t rounds = 0;
  bool experiment = false;   // beside it
  bool two_threads = false;  // beside it
  std::string name() const {
    return absl::StrCat("decode ", format.name, dim == 128 ? "" : absl::StrCat(" dim ", dim),
                        block_tokens == 64 ? "" : absl::StrCat(" blocks of ", block_tokens), " ",
                        tokens / 1024, "K");
  }
};

// What of one case took turns.
struct Decoded {
  Rounds rounds;
  size_t commit = 0, random = 0, in_private = 0, read = 0;
  std::optional<size_t> experiment, two_threads, two_reads;
  double error = 0;

  double ratio(size_t side, size_t reference) const { return rounds.RateRatio(side, reference); }
  std::string text(const std::string& what, size_t side) const {
    return RateText(what, rounds.bytes_per_s(side));
  }
  Figure rate(const std::string& name, size_t side) const {
    return {name + "_bytes_per_s", rounds.bytes_per_s(side)};
  }
};

std::optional<Decoded> Measure(Bench& bench, KernelMemory& memory, const DecodeCase& what) {
  const KvShape shape{.format = what.format.format,
                      .dim = what.dim,
                      .tokens = what.tokens,
                      .block_tokens = what.block_tokens};
  const auto in_arena = KvPages::Fill(memory.arena(), shape);
  if (!bench.Check(in_arena.ok(), in_arena.status().ToString())) return std::nullopt;
  const auto in_private = KvPages::Fill(memory.private_pages(), shape);
  if (!bench.Check(in_private.ok(), in_private.status().ToString())) return std::nullopt;

  AttentionCall commit(*in_arena, {});
  AttentionCall random(*in_arena, {.order = PageOrder::kRandom});
  AttentionCall in_huge(*in_private, {});
  AttentionCall two_threads(*in_arena, {.threads = 2});
  Decoded seen;
  // The oracle takes its time: a long context is checked at one place only.
  seen.error = commit.Error();
  const double worst = what.tokens > 8192 ? seen.error : std::max(seen.error, random.Error());
  if (!bench.Check(worst <= kPreciseError,
                   absl::StrCat(what.name(), ": relative error ", worst, " of exact attention"))) {
    return std::nullopt;
  }
  std::vector<Side> sides;
  const auto add = [&](Side side) {
    sides.push_back(std::move(side));
    return sides.size() - 1;
  };
  const uint64_t bytes = in_arena->table_bytes();
  seen.commit = add(commit.side("commit order"));
  seen.random = add(random.side("random order"));
  seen.in_private = add(in_huge.side("private"));
  seen.read = add(memory.StreamReadSide(bytes, 1));
  std::optional<Experiment> experiment;
  if (what.experiment && CanRunExperiment()) {
    experiment.emplace(memory.spare(), what.tokens);
    seen.experiment = add(experiment->side());
  }
  if (what.two_threads) {
    seen.two_threads = add(two_threads.side("two threads"));
    seen.two_reads = add(memory.StreamReadSide(bytes, 2));
  }
  seen.rounds = TakeTurns(sides, what.rounds);
  for (const AttentionCall* call : {&commit, &random, &in_huge, &two_threads}) {
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
      seen.rate("random_order", seen.random),
      seen.rate("private_huge_pages", seen.in_private),
      seen.rate("stream_read", seen.read)};
  if (seen.experiment) figures.push_back(seen.rate("experiment", *seen.experiment));
  if (seen.two_threads) {
    figures.push_back(seen.rate("two_threads", *seen.two_threads));
    figures.push_back(seen.rate("two_core_read", *seen.two_reads));
  }
  figures.push_back({"error_percent", 100 * seen.error});
  bench.Add({what.name(), std::move(figures)});
}

struct RatioTarget {
  std::string name;
  size_t ours = 0;
  std::string our_text;
  size_t reference = 0;
  std::string reference_text;
  double at_least = 0;
};

void JudgeRatio(Bench& bench, const Decoded& seen, const RatioTarget& target) {
  const Rounds& rounds = seen.rounds;
  bench.Judge({.name = "K-" + target.name,
               .ours = target.our_text,
               .reference = RateText(target.reference_text, rounds.bytes_per_s(target.reference)),
               .seen = seen.ratio(target.ours, target.reference),
               .at_most = false,
               .limit = target.at_least,
               .runs = rounds.samples[target.ours].size(),
               .spread_percent = rounds.RateSpreadPercent(target.ours, target.reference)});
}

void JudgeAgainstRead(Bench& bench, const DecodeCase& what, const Decoded& seen) {
  const std::string beside = seen.text("private huge pages", seen.in_private);
  JudgeRatio(bench, seen,
             {.name = what.name(),
              .ours = seen.commit,
              .our_text = absl::StrCat(seen.text("attend", seen.commit), " (", beside, ")"),
              .reference = seen.read,
              .reference_text = "stream read",
              .at_least = what.format.decode_floor});
}

// K8/V4, the format that the experiment has too.
void DecodeBesideExperiment(Bench& bench, KernelMemory& memory, DecodeCase what) {
  what.experiment = what.two_threads = true;
  const std::optional<Decoded> seen = Measure(bench, memory, what);
  if (!seen) return;
  AddRow(bench, what, *seen);
  const std::string name = what.name();
  JudgeAgainstRead(bench, what, *seen);
  JudgeRatio(bench, *seen,
             {.name = name + " random order",
              .ours = seen->random,
              .our_text = seen->text("attend", seen->random),
              .reference = seen->commit,
              .reference_text = "commit order",
              .at_least = 0.85});
  JudgeRatio(bench, *seen,
             {.name = name + " 2 threads",
              .ours = *seen->two_threads,
              .our_text = seen->text("attend", *seen->two_threads),
              .reference = *seen->two_reads,
              .reference_text = "two-core stream read",
              .at_least = 0.70});
  if (seen->experiment) {
    JudgeRatio(bench, *seen,
               {.name = name + " against the experiment",
                .ours = seen->commit,
                .our_text = seen->text("attend", seen->commit),
                .reference = *seen->experiment,
                .reference_text = "experiment",
                .at_least = 1.05});
  } else {
    bench.Note(name + " against the experiment: skipped, this CPU has no AVX-512 VNNI");
  }
}

void DecodeFormat(Bench& bench, KernelMemory& memory, const DecodeCase& what) {
  const std::optional<Decoded> seen = Measure(bench, memory, what);
  if (!seen) return;
  AddRow(bench, what, *seen);
  JudgeAgainstRead(bench, what, *seen);
}

}  // namespace

void KernelsDecode(Bench& bench, KernelMemory& memory) {
  if (CanRunExperiment()) {
    const double error = Experiment::Error();
    bench.Check(error <= kFastError, absl::StrCat("the experiment's relative error is ", error));
  }
  const uint64_t rounds = bench.Parameter("decode_rounds", 2, 15, 41);
  const std::vector<KernelFormat> formats = KernelFormats();
  std::vector<uint32_t> lengths = {4096, 16384, 32768};
  if (bench.smoke()) lengths = {1024};
  for (const uint32_t tokens : lengths) {
    DecodeBesideExperiment(
        bench, memory,
        {.format = FormatNamed(formats, "8/4 rows"), .tokens = tokens, .rounds = rounds});
  }
  bench.Note(absl::StrCat("pages: ", memory.arena().name(), ", beside them ",
                          memory.private_pages().name()));
  const uint32_t middle = lengths[lengths.size() / 2];
  for (const KernelFormat& format : formats) {
    if (format.name == "8/4 rows") continue;
    DecodeFormat(bench, memory, {.format = format, .tokens = middle, .rounds = rounds});
  }
}

}  // namespace prefixd::bench
