// What quantizing costs a decode step: K and V of one new token a layer, beside attention on the
// quantized context. Nothing is dequantized in a step: attention reads codes.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bench/common/timing.h"
#include "bench/kernels/kernels.h"
#include "kernels/quantize.h"
#include "quant/unit.h"

namespace prefixd::bench {
namespace {

constexpr uint32_t kPageTokens = 64;

// The units of one page, into which tokens are quantized one after the other.
class OneToken {
 public:
  explicit OneToken(const quant::KvFormat& format)
      : format_(format),
        floats_(NormalFloats(size_t{kHeads} * kDim, 5)),
        units_(2 * kHeads * (UnitBytes(format.key) + UnitBytes(format.value))) {}

  void Run() {
    Quantize(quant::Side::kKey, format_.key, units_.data());
    Quantize(quant::Side::kValue, format_.value, units_.data() + kHeads * UnitBytes(format_.key));
    slot_ = (slot_ + 1) % kPageTokens;
  }

 private:
  static uint64_t UnitBytes(const quant::TensorFormat& format) {
    return quant::LayoutOfUnit(format, kDim, kPageTokens).unit_bytes;
  }
  void Quantize(quant::Side side, const quant::TensorFormat& format, std::byte* units) const {
    kernels::Quantize(format,
                      {.data = reinterpret_cast<const std::byte*>(floats_.data()),
                       .dtype = quant::Dtype::kF32,
                       .head_stride = kDim,
                       .token_stride = kDim},
                      {.side = side,
                       .heads = kHeads,
                       .dim = kDim,
                       .page_tokens = kPageTokens,
                       .first_token = slot_,
                       .tokens = 1},
                      units);
  }

  const quant::KvFormat format_;
  const std::vector<float> floats_;
  HugeBytes units_;
  uint32_t slot_ = 0;
};

// The source's server lost so much from full precision to 4 bits.
struct Column {
  const char* name;
  uint32_t sequences;
  double at_most_percent;
};
constexpr Column kColumns[] = {{"1 sequence", 1, 4.5}, {"4 sequences", 4, 6.5}};

void JudgeColumn(Bench& bench, const Column& column, AttentionCall& attend, OneToken& token,
                 uint32_t tokens, uint64_t rounds) {
  const auto times = [&](auto run) {
    return [&column, run] {
      for (uint32_t i = 0; i < column.sequences; ++i) run();
    };
  };
  const Rounds seen = TakeTurns(
      {{"quantize", 1, times([&] { token.Run(); })}, {"attend", 1, times([&] { attend.Run(); })}},
      rounds);
  const double quantize_us = seen.median_us(0), attend_us = seen.median_us(1);
  bench.Judge(
      {.name = absl::StrCat("quantizing in a decode step at ", tokens, " tokens, ", column.name),
       .ours = absl::StrCat("quantize ", MicrosText(quantize_us), " a layer"),
       .reference = absl::StrCat("attend in 4 bits ", MicrosText(attend_us)),
       .measure = "share",
       .seen = 100 * quantize_us / attend_us,
       .limit = column.at_most_percent,
       .unit = " %",
       .runs = rounds,
       .spread_percent = seen.RateSpreadPercent(0, 1)});
}

}  // namespace

void KernelsOverhead(Bench& bench, KernelMemory& memory) {
  const auto tokens = static_cast<uint32_t>(bench.Parameter("overhead_tokens", 512, 4096));
  const uint64_t rounds = bench.Parameter("overhead_rounds", 3, 31, 101);
  const KernelFormat format = FormatNamed(KernelFormats(), "4/4 tiled");
  const std::optional<KvPages> pages =
      FillPages(bench, memory.arena(),
                {.format = format.format, .kv_heads = kHeads, .dim = kDim, .tokens = tokens});
  if (!pages) return;
  AttentionCall attend(*pages, {});
  OneToken token(format.format);
  for (const Column& column : kColumns) {
    JudgeColumn(bench, column, attend, token, tokens, rounds);
  }
  bench.Check(attend.status().ok(), attend.status().ToString());
}

}  // namespace prefixd::bench
