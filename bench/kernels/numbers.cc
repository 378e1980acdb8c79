// Whether the time of quantizing grows with the length and no faster, and the memory beside it not
// at all.
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"

#include "bench/common/timing.h"
#include "bench/kernels/conversion.h"
#include "bench/kernels/kernels.h"
#include "bench/kv_cache/kv_cache.h"

namespace prefixd::bench {
namespace {

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
  double extra[2] = {};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const KvCacheOptions shape{.layers = 1, .seq_len = i == 0 ? longest / 8 : longest, .heads = 8};
    ModeRun run(shape, quant::Dtype::kF16, CacheModes(shape, quant::Dtype::kF16)[1]);
    run.Run();
    extra[i] = static_cast<double>(run.extra_bytes());
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
  LinearInLength(bench);
  ExtraMemory(bench);
}

}  // namespace prefixd::bench
