// How far attention is from exact attention on the dequantized values, and whether threads change a
// bit of it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "bench/common/process_memory.h"
#include "bench/kernels/kernels.h"

namespace prefixd::bench {
namespace {

using enum kernels::AttentionMode;

struct Errors {
  double of[3] = {};       // by mode: the worst of all seeds, relative RMS
  uint64_t differing = 0;  // outputs that are other bits with two threads

  double& Of(kernels::AttentionMode mode) { return of[static_cast<size_t>(mode)]; }
};

bool Compare(Bench& bench, PageStore& store, const KvShape& shape, Errors& errors) {
  const auto pages = KvPages::Fill(store, shape);
  if (!bench.Check(pages.ok(), pages.status().ToString())) return false;
  const uint32_t seed = 100 + shape.seed;
  std::vector<float> exact;
  for (const auto mode : {kPrecise, kFast, kFastPrefill}) {
    AttentionCall one(*pages, {.mode = mode, .query_seed = seed});
    AttentionCall two(*pages, {.threads = 2, .mode = mode, .query_seed = seed});
    if (exact.empty()) exact = one.Exact();
    one.Run();
    two.Run();
    errors.Of(mode) = std::max(errors.Of(mode), RelativeRms(one.out(), exact));
    for (size_t i = 0; i < exact.size(); ++i) {
      errors.differing += std::memcmp(&one.out()[i], &two.out()[i], sizeof(float)) != 0;
    }
    if (!bench.Check(one.status().ok() && two.status().ok(), one.status().ToString())) return false;
  }
  return true;
}

void JudgeError(Bench& bench, const std::string& name, double error, double at_most,
                uint64_t seeds) {
  char text[64];
  std::snprintf(text, sizeof(text), "relative RMS at most %.4f %%", 100 * error);
  bench.Judge({.name = "K-error " + name,
               .ours = text,
               .reference = "exact attention on dequantized values 0 %",
               .measure = "error",
               .seen = 100 * error,
               .limit = 100 * at_most,
               .unit = " %",
               .runs = seeds});
}

void ErrorsOf(Bench& bench, PageStore& store, const KernelFormat& format, uint32_t tokens,
              uint64_t seeds) {
  Errors errors;
  for (uint32_t seed = 0; seed < seeds; ++seed) {
    const KvShape shape{
        .format = format.format, .tokens = tokens, .layers = 1, .sequences = 1, .seed = seed};
    if (!Compare(bench, store, shape, errors)) return;
  }
  bench.Add({absl::StrCat("error ", format.name, " ", tokens, " tokens"),
             {{"precise_percent", 100 * errors.Of(kPrecise)},
              {"fast_percent", 100 * errors.Of(kFast)},
              {"fast_prefill_percent", 100 * errors.Of(kFastPrefill)},
              {"seeds", static_cast<double>(seeds)}}});
  JudgeError(bench, absl::StrCat(format.name, " precise"), errors.Of(kPrecise), kPreciseError,
             seeds);
  JudgeError(bench, absl::StrCat(format.name, " fast"), errors.Of(kFast), kFastError, seeds);
  JudgeError(bench, absl::StrCat(format.name, " fast prefill"), errors.Of(kFastPrefill), kFastError,
             seeds);
  bench.Judge({.name = absl::StrCat("K-same ", format.name, " with 1 and 2 threads"),
               .ours = absl::StrCat(errors.differing, " outputs differ"),
               .reference = "1 thread",
               .measure = "differing",
               .seen = static_cast<double>(errors.differing),
               .limit = 0,
               .runs = 2 * seeds});
}

// Most resident memory that a call needs beside what was there before it.
uint64_t GrowthOf(AttentionCall& call) {
  const uint64_t before = ResidentBytes();
  if (!ForgetPeak()) return 0;
  call.Run();
  const uint64_t peak = PeakResidentBytes();
  return peak > before ? peak - before : 0;
}

// Scores of every position of every head would be 4 MiB more for each 32,768 tokens.
void MemoryOfLongContexts(Bench& bench, const KernelFormat& format) {
  if (!ForgetPeak()) {
    bench.Note("K-memory: skipped, this kernel does not forget a process's peak");
    return;
  }
  const uint32_t longest = bench.smoke() ? 1024 : 65536;
  const std::unique_ptr<PageStore> store =
      MakePrivateStore(bench.smoke() ? 24ull << 20 : 512ull << 20);
  uint64_t growth[2] = {};
  uint32_t tokens = longest / 16;
  for (uint64_t& of_this : growth) {
    const auto pages = KvPages::Fill(
        *store, {.format = format.format, .tokens = tokens, .layers = 1, .sequences = 1});
    if (!bench.Check(pages.ok(), pages.status().ToString())) return;
    AttentionCall call(*pages, {.mode = kernels::AttentionMode::kFast});
    of_this = GrowthOf(call);
    tokens = longest;
  }
  bench.Judge(
      {.name = absl::StrCat("K-memory of a call over ", longest, " tokens"),
       .ours = "peak " + BytesText(static_cast<double>(growth[1])),
       .reference =
           absl::StrCat(longest / 16, " tokens ", BytesText(static_cast<double>(growth[0]))),
       .measure = "more by",
       .seen = growth[1] > growth[0] ? static_cast<double>(growth[1] - growth[0]) / (1 << 20) : 0,
       .limit = 0.5,  // the kernel counts pages in lots
       .unit = " MiB",
       .runs = 1});
}

}  // namespace

void KernelsError(Bench& bench) {
  const auto tokens = static_cast<uint32_t>(bench.Parameter("error_tokens", 256, 4096));
  const uint64_t seeds = bench.Parameter("error_seeds", 2, 20);
  const uint64_t other_seeds = bench.Parameter("error_seeds_of_other_formats", 1, 3, 20);
  const std::unique_ptr<PageStore> store = MakePrivateStore(48ull << 20);
  const std::vector<KernelFormat> formats = KernelFormats();
  for (const KernelFormat& format : formats) {
    ErrorsOf(bench, *store, format, tokens, format.name == "8/4 tiled" ? seeds : other_seeds);
  }
  MemoryOfLongContexts(bench, FormatNamed(formats, "8/4 tiled"));
}

}  // namespace prefixd::bench
