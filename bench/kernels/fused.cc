// Attention on quantized pages in place against dequantizing all of them to f16 first.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "bench/common/timing.h"
#include "bench/kernels/kernels.h"
#include "kernels/quantize.h"

namespace prefixd::bench {
namespace {

// The pages of one table after the other, as f16 pages of the same geometry.
class Dequantized {
 public:
  explicit Dequantized(const KvShape& shape)
      : shape_(shape),
        tensor_bytes_(uint64_t{shape.kv_heads} * shape.block_tokens * shape.dim * sizeof(uint16_t)),
        memory_(2 * tensor_bytes_ * (shape.tokens / shape.block_tokens)) {
    for (uint64_t at = 0; at < memory_.size() / (2 * tensor_bytes_); ++at) {
      table_.push_back({.units = memory_.data() + at * 2 * tensor_bytes_,
                        .page_tokens = shape.block_tokens,
                        .tokens = shape.block_tokens});
    }
  }
  void Load(const KvPages& pages, quant::BlockTable from) {
    const quant::KvFormat& format = pages.shape().format;
    const uint64_t value_offset =
        shape_.kv_heads *
        quant::LayoutOfUnit(format.key, shape_.dim, shape_.block_tokens).unit_bytes;
    for (size_t i = 0; i < from.size(); ++i) {
      std::byte* const to = memory_.data() + i * 2 * tensor_bytes_;
      Convert(quant::Side::kKey, format.key, from[i].units, to);
      Convert(quant::Side::kValue, format.value, from[i].units + value_offset, to + tensor_bytes_);
    }
  }
  quant::BlockTable table() const { return {table_.data(), shape_.tokens / shape_.block_tokens}; }

 private:
  void Convert(quant::Side side, const quant::TensorFormat& format, const std::byte* units,
               std::byte* to) const {
    kernels::Dequantize(format, units,
                        {.side = side,
                         .heads = shape_.kv_heads,
                         .dim = shape_.dim,
                         .page_tokens = shape_.block_tokens,
                         .first_token = 0,
                         .tokens = shape_.block_tokens},
                        {.data = to,
                         .dtype = quant::Dtype::kF16,
                         .head_stride = size_t{shape_.block_tokens} * shape_.dim,
                         .token_stride = shape_.dim});
  }
  const KvShape shape_;
  const uint64_t tensor_bytes_;
  HugeBytes memory_;
  std::vector<quant::BlockTableEntry> table_;
};

}  // namespace

void KernelsFused(Bench& bench, KernelMemory& memory) {
  const auto tokens = static_cast<uint32_t>(bench.Parameter("fused_tokens", 512, 4096));
  const uint64_t rounds = bench.Parameter("fused_rounds", 2, 7, 15);
  const quant::TensorFormat raw = quant::RawFormat(quant::Dtype::kF16);
  const quant::KvFormat raw_pair{raw, raw};
  for (const KernelFormat& format : KernelFormats()) {
    if (format.format == raw_pair) continue;
    const std::optional<KvPages> pages =
        FillPages(bench, memory.arena(), {.format = format.format, .tokens = tokens});
    if (!pages) return;
    Dequantized dequantized(pages->shape());
    for (const uint32_t rows : {1u, bench.smoke() ? 32u : 256u}) {
      AttentionCall fused(*pages, {.query_rows = rows}), apart(*pages, {.query_rows = rows});
      TellSpeedup(bench, absl::StrCat("fused ", format.name, " ", rows, " x ", tokens),
                  fused.side("fused"),
                  {"dequantize_then_attend", 1,
                   [&] {
                     dequantized.Load(*pages, apart.NextTable());
                     apart.RunOver(dequantized.table(), {&raw_pair, 1});
                   }},
                  rounds);
      bench.Check(fused.status().ok() && apart.status().ok(), fused.status().ToString());
    }
  }
}

}  // namespace prefixd::bench
