// What a worker asks for beside one row of one sequence: several rows, and sequences that share a
// prefix.
#include "kernels/batch.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "bench/common/timing.h"
#include "bench/kernels/kernels.h"

namespace prefixd::bench {
namespace {

// Sequences that go on from one prefix, each with one block and one query row of its own.
class Siblings {
 public:
  Siblings(const KvPages& pages, uint32_t prefix_blocks, uint32_t members)
      : pages_(pages), prefix_blocks_(prefix_blocks), tables_(members), outs_(members) {
    const KvShape& of = pages.shape();
    shape_ = {.query_heads = 4 * of.kv_heads,
              .kv_heads = of.kv_heads,
              .key_dim = of.dim,
              .value_dim = of.dim,
              .first_position = (prefix_blocks + 1) * of.block_tokens - 1,
              .scale = 1 / std::sqrt(static_cast<float>(of.dim)),
              .mode = kernels::AttentionMode::kFast};
    for (uint32_t i = 0; i < members; ++i) {
      queries_.push_back(NormalFloats(size_t{shape_.query_heads} * of.dim, 40 + i));
      outs_[i].resize(queries_[i].size());
    }
  }

  // Over the next prefix; each of both.
  void Together() {
    Grow();
    std::vector<kernels::BatchItem> items;
    for (size_t i = 0; i < tables_.size(); ++i) {
      items.push_back({.table = tables_[i],
                       .q = queries_[i].data(),
                       .out = outs_[i].data(),
                       .first_position = shape_.first_position});
    }
    status_.Update(kernels::AttendBatch(items, pages_.formats(), shape_));
  }
  void OneByOne() {
    Grow();
    for (size_t i = 0; i < tables_.size(); ++i) {
      status_.Update(kernels::Attend(tables_[i], pages_.formats(), queries_[i].data(),
                                     outs_[i].data(), shape_));
    }
  }
  void Begin(size_t table) { next_ = table; }
  const absl::Status& status() const { return status_; }

 private:
  void Grow() {
    const quant::BlockTable prefix =
        pages_.table(PageOrder::kCommit, next_ % pages_.tables()).first(prefix_blocks_);
    for (size_t i = 0; i < tables_.size(); ++i) {
      const quant::BlockTable other =
          pages_.table(PageOrder::kCommit, (next_ + 1 + i) % pages_.tables());
      tables_[i].assign(prefix.begin(), prefix.end());
      tables_[i].push_back(other.back());
    }
    ++next_;
  }

  const KvPages& pages_;
  const uint32_t prefix_blocks_;
  kernels::AttentionShape shape_;
  std::vector<std::vector<quant::BlockTableEntry>> tables_;
  std::vector<std::vector<float>> queries_, outs_;
  size_t next_ = 0;
  absl::Status status_;
};

}  // namespace

void KernelsBatch(Bench& bench, KernelMemory& memory) {
  const uint64_t rounds = bench.Parameter("batch_rounds", 2, 9, 31);
  const auto tokens = static_cast<uint32_t>(bench.Parameter("batch_tokens", 1024, 16384));
  const KvShape shape{.format = FormatNamed(KernelFormats(), "8/4 tiled").format, .tokens = tokens};
  const std::optional<KvPages> pages = FillPages(bench, memory.arena(), shape);
  if (!pages) return;
  // As a speculative or batched step asks for them.
  for (const uint32_t rows : {2u, 4u, 8u}) {
    AttentionCall several(*pages, {.query_rows = rows, .first_table = pages->tables() / 2});
    AttentionCall one(*pages, {});
    TellSpeedup(bench, absl::StrCat("decode ", rows, " rows ", tokens / 1024, "K"),
                several.side("several"),
                {"as_many_calls", 1,
                 [&] {
                   for (uint32_t i = 0; i < rows; ++i) one.Run();
                 }},
                rounds);
  }
  for (const uint32_t members : {2u, 8u}) {
    Siblings together(*pages, tokens / shape.block_tokens - 1, members);
    Siblings apart(*pages, tokens / shape.block_tokens - 1, members);
    apart.Begin(pages->tables() / 2);
    TellSpeedup(
        bench,
        absl::StrCat("cascade of ", members, " sequences over ", tokens / 1024, "K shared tokens"),
        {"together", 1, [&] { together.Together(); }}, {"one_by_one", 1, [&] { apart.OneByOne(); }},
        rounds);
    bench.Check(together.status().ok() && apart.status().ok(), together.status().ToString());
  }
}

}  // namespace prefixd::bench
