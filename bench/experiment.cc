#include "bench/experiment.h"

#include <cmath>
#include <cstring>

#include "bench/attention_call.h"
#include "bench/kv_pages.h"
#include "kernels/attention.h"
#include "kernels/quantize.h"

namespace prefixd::bench {
namespace {

constexpr size_t kKvHeads = 8;
constexpr size_t kHeadFloats = size_t{kExperimentHeads} * kExperimentDim;
constexpr size_t kPageFloats = size_t{kExperimentTokens} * kExperimentDim;
constexpr size_t kAhead = 4;  // pages, the best of 2, 4 and 8
constexpr size_t kContents = 13;

std::vector<float> Queries(size_t heads) {
  std::vector<float> query = NormalFloats(heads * kHeadFloats, 3);
  for (float& value : query) value /= std::sqrt(static_cast<float>(kExperimentDim));
  return query;
}

std::vector<ExperimentPage> Contents(size_t count) {
  std::vector<ExperimentPage> pages(count);
  for (uint32_t i = 0; i < count; ++i) {
    FillExperimentPage(NormalFloats(kPageFloats, 2 * i).data(),
                       NormalFloats(kPageFloats, 2 * i + 1).data(), &pages[i]);
  }
  return pages;
}

}  // namespace

Experiment::Experiment(HugeBytes& memory, uint32_t tokens)
    : pages_(reinterpret_cast<ExperimentPage*>(memory.data())),
      page_count_(memory.size() / sizeof(ExperimentPage) - kAhead),
      head_pages_(tokens / kExperimentTokens),
      query_(Queries(kKvHeads)),
      out_(query_.size()) {
  const std::vector<ExperimentPage> contents = Contents(kContents);
  for (size_t i = 0; i < page_count_ + kAhead; ++i) {
    std::memcpy(static_cast<void*>(pages_ + i), &contents[i % kContents], sizeof(ExperimentPage));
  }
}

Side Experiment::side() {
  return {"experiment", kKvHeads * head_pages_ * sizeof(ExperimentPage), [this] { Run(); }};
}

void Experiment::Run() {
  if (next_ + kKvHeads * head_pages_ > page_count_) next_ = 0;
  for (size_t head = 0; head < kKvHeads; ++head) {
    DecodeExperiment(pages_ + next_, head_pages_, query_.data() + head * kHeadFloats, kAhead,
                     out_.data() + head * kHeadFloats);
    next_ += head_pages_;
  }
}

double Experiment::Error() {
  constexpr uint32_t kPages = 16;
  const std::vector<ExperimentPage> pages = Contents(kPages + kAhead);
  const quant::KvFormat format{quant::MlxAffineFormat(8, 64, quant::Dtype::kF16),
                               quant::MlxAffineFormat(4, 64, quant::Dtype::kF16)};
  const uint64_t key_bytes =
      quant::LayoutOfUnit(format.key, kExperimentDim, kExperimentTokens).unit_bytes;
  const uint64_t value_bytes =
      quant::LayoutOfUnit(format.value, kExperimentDim, kExperimentTokens).unit_bytes;
  HugeBytes units(kPages * (key_bytes + value_bytes));
  std::vector<quant::BlockTableEntry> table;
  for (uint32_t i = 0; i < kPages; ++i) {
    std::byte* const unit = units.data() + i * (key_bytes + value_bytes);
    const kernels::UnitRun run{.heads = 1,
                               .dim = kExperimentDim,
                               .page_tokens = kExperimentTokens,
                               .first_token = 0,
                               .tokens = kExperimentTokens};
    for (const bool value : {false, true}) {
      const std::vector<float> floats = NormalFloats(kPageFloats, 2 * i + (value ? 1 : 0));
      kernels::Quantize(value ? format.value : format.key,
                        {.data = reinterpret_cast<const std::byte*>(floats.data()),
                         .dtype = quant::Dtype::kF32,
                         .head_stride = kPageFloats,
                         .token_stride = kExperimentDim},
                        run, value ? unit + key_bytes : unit);
    }
    table.push_back({.units = unit, .page_tokens = kExperimentTokens, .tokens = kExperimentTokens});
  }
  const std::vector<float> query = Queries(1);
  std::vector<float> exact(kHeadFloats), out(kHeadFloats);
  const absl::Status status =
      kernels::AttendScalar(table, {&format, 1}, query.data(), exact.data(),
                            {.query_rows = 1,
                             .query_heads = kExperimentHeads,
                             .kv_heads = 1,
                             .key_dim = kExperimentDim,
                             .value_dim = kExperimentDim,
                             .first_position = kPages * kExperimentTokens - 1,
                             .scale = 1});
  if (!status.ok()) return INFINITY;
  DecodeExperiment(pages.data(), kPages, query.data(), kAhead, out.data());
  return RelativeRms(out, exact);
}

}  // namespace prefixd::bench
