// What quantization keeps of N(0,1) values, what it saves, and whether its time grows with the
// length and no faster.
#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"

#include "bench/conversion.h"
#include "bench/kernels.h"
#include "bench/kv_cache.h"
#include "bench/timing.h"

namespace prefixd::bench {
namespace {

struct ErrorTarget {
  const char* mode;
  double mean = 0;     // MLX's
  double allowed = 0;  // off that
};

// In 1e-5, since lines show two decimals.
void JudgeMeanError(Bench& bench, const CacheResult& result, const ErrorTarget& target) {
  constexpr double kUnit = 1e-5;
  char text[64], reference[64];
  std::snprintf(text, sizeof(text), "mean error %.6f of %.1f million values",
                result.distance.mean(), static_cast<double>(result.distance.count) * 1e-6);
  std::snprintf(reference, sizeof(reference), "MLX's %.5f", target.mean);
  bench.Judge({.name = absl::StrCat("K-cache ", target.mode, " error of N(0,1)"),
               .ours = text,
               .reference = reference,
               .measure = "off by",
               .seen = std::abs(result.distance.mean() - target.mean) / kUnit,
               .limit = target.allowed / kUnit,
               .unit = "e-5",
               .runs = 1});
}

void JudgeCompression(Bench& bench, const CacheResult& result, double at_least) {
  bench.Judge({.name = absl::StrCat("K-cache ", result.mode, " of ", quant::ToString(result.dtype)),
               .ours = "stored " + BytesText(static_cast<double>(result.memory_bytes)),
               .reference = "raw " + BytesText(static_cast<double>(result.raw_bytes)),
               .seen = result.ratio(),
               .at_most = false,
               .limit = at_least,
               .runs = 1});
}

void ErrorsAndSizes(Bench& bench) {
  const KvCacheOptions shape{.layers = 2, .seq_len = bench.smoke() ? 64u : 512u};
  Progress silent(false);
  const ErrorTarget targets[] = {{"8-bit", 0.00456, 0.00002}, {"4-bit", 0.0771, 0.0002}};
  for (const quant::Dtype dtype : {quant::Dtype::kF32, quant::Dtype::kF16}) {
    const bool f32 = dtype == quant::Dtype::kF32;
    for (const CacheMode& mode : CacheModes(shape, dtype)) {
      const bool eight = mode.name == "8-bit";
      if (!eight && mode.name != "4-bit") continue;
      const CacheResult result = RunProductionFlow(shape, dtype, mode, silent);
      if (f32) JudgeMeanError(bench, result, targets[eight ? 0 : 1]);
      // 32 bits against 8 + 2 * 32 / 64 and so on.
      JudgeCompression(bench, result,
                       f32 ? (eight ? 32 / 9.0 : 32 / 5.0) : (eight ? 16 / 8.5 : 16 / 4.5));
    }
  }
}

// One layer of 8 heads at more and more tokens.
struct Length {
  explicit Length(uint32_t tokens)
      : floats(quant::Dtype::kF32, 8, tokens, 128),
        values(quant::Dtype::kF32, 8, tokens, 128),
        pages(quant::MlxAffineFormat(8, 64, quant::Dtype::kF32), floats) {}
  void Run() {
    pages.QuantizeFrom(floats);
    pages.DequantizeTo(values);
  }
  FloatTensor floats, values;
  PagedTensor pages;
};

void LinearInLength(Bench& bench) {
  const auto longest = static_cast<uint32_t>(bench.Parameter("linear_tokens", 1024, 65536));
  std::vector<std::unique_ptr<Length>> lengths;
  std::vector<Side> sides;
  for (uint32_t tokens = longest / 8; tokens <= longest; tokens *= 2) {
    Length* const length = lengths.emplace_back(std::make_unique<Length>(tokens)).get();
    sides.push_back({absl::StrCat(tokens), length->floats.bytes(), [length] { length->Run(); }});
  }
  const Rounds seen = TakeTurns(sides, bench.Parameter("linear_rounds", 2, 5, 9));
  std::vector<double> per_token;
  for (size_t i = 0; i < sides.size(); ++i) {
    per_token.push_back(seen.median_us(i) / lengths[i]->floats.tokens());
  }
  const double slowest = *std::max_element(per_token.begin(), per_token.end());
  const double first = per_token.front();
  bench.Judge({.name = absl::StrCat("K-cache linear to ", longest, " tokens"),
               .ours = absl::StrCat("slowest length ", MicrosText(slowest), " a token and layer"),
               .reference = absl::StrCat(longest / 8, " tokens ", MicrosText(first)),
               .seen = slowest / first,
               .limit = 2,
               .runs = seen.samples[0].size(),
               .spread_percent = Summarize(seen.samples.back()).spread_percent});
}

// A chunk of floats stands beside what is stored, however long the sequence.
void ExtraMemory(Bench& bench) {
  const auto longest = static_cast<uint32_t>(bench.Parameter("extra_tokens", 1024, 16384));
  Progress silent(false);
  double extra[2] = {};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const KvCacheOptions shape{.layers = 1, .seq_len = i == 0 ? longest / 8 : longest, .heads = 8};
    const CacheMode mode = CacheModes(shape, quant::Dtype::kF16)[1];
    extra[i] =
        static_cast<double>(RunProductionFlow(shape, quant::Dtype::kF16, mode, silent).extra_bytes);
  }
  bench.Judge({.name = absl::StrCat("K-cache memory beside ", longest, " stored tokens"),
               .ours = "peak " + BytesText(extra[1]),
               .reference = absl::StrCat(longest / 8, " tokens ", BytesText(extra[0])),
               .measure = "more by",
               .seen = std::max(extra[1] - extra[0], 0.0) / (1 << 20),
               .limit = 2,  // one huge page
               .unit = " MiB",
               .runs = 1});
}

}  // namespace

void KernelsNumbers(Bench& bench) {
  ErrorsAndSizes(bench);
  LinearInLength(bench);
  ExtraMemory(bench);
}

}  // namespace prefixd::bench
