// What a worker asks for beside one row of one sequence: several rows, sequences that share a
// prefix, pages of another block length, and last pages that are not full.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "bench/kernels.h"
#include "bench/timing.h"
#include "kernels/batch.h"
#include "quant/unit.h"

namespace prefixd::bench {
namespace {

// Sequences that go on from one prefix, each with one block and one query row of its own.
class Family {
 public:
  Family(const KvPages& pages, uint32_t prefix_blocks, uint32_t members)
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
  const std::vector<std::vector<float>>& outs() const { return outs_; }
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

void Cascade(Bench& bench, const KvPages& pages, uint64_t rounds) {
  const uint32_t blocks = pages.shape().tokens / pages.shape().block_tokens - 1;
  for (const uint32_t members : {2u, 8u}) {
    Family together(pages, blocks, members), apart(pages, blocks, members);
    together.Together();
    apart.OneByOne();
    if (!bench.Check(
            together.status().ok() && apart.status().ok() && together.outs() == apart.outs(),
            "a batch has other bits than separate calls")) {
      return;
    }
    apart.Begin(pages.tables() / 2);
    const Rounds seen = TakeTurns({{"together", 1, [&] { together.Together(); }},
                                   {"one by one", 1, [&] { apart.OneByOne(); }}},
                                  rounds);
    Tell(bench, {absl::StrCat("cascade of ", members, " sequences over ",
                              pages.shape().tokens / 1024, "K shared tokens"),
                 {{"median_us", seen.median_us(0)},
                  {"one_by_one_us", seen.median_us(1)},
                  {"speedup_ratio", seen.RateRatio(0, 1)},
                  {"spread_percent", seen.RateSpreadPercent(0, 1)}}});
  }
}

// 1 to 8 query rows of one sequence, as a speculative or batched step asks for them.
void Rows(Bench& bench, const KvPages& pages, uint64_t rounds) {
  AttentionCall one(pages, {});
  for (const uint32_t rows : {2u, 4u, 8u}) {
    AttentionCall several(pages, {.query_rows = rows, .first_table = pages.tables() / 2});
    if (!bench.Check(several.Error() <= kFastError, absl::StrCat(rows, " rows: error too large"))) {
      return;
    }
    const Rounds seen = TakeTurns({several.side("several"), one.side("one")}, rounds);
    Tell(bench, {absl::StrCat("decode ", rows, " rows ", pages.shape().tokens / 1024, "K"),
                 {{"median_us", seen.median_us(0)},
                  {"rate_bytes_per_s", seen.bytes_per_s(0)},
                  {"one_row_us", seen.median_us(1)},
                  {"of_as_many_calls_ratio", rows * seen.median_us(1) / seen.median_us(0)},
                  {"spread_percent", seen.RateSpreadPercent(0, 1)}}});
  }
}

// The same tokens in blocks of 128 and of 64, an arena each.
void Blocks(Bench& bench, PageStore& a, PageStore& b, const KvShape& shape, uint64_t rounds) {
  KvShape doubled = shape;
  doubled.block_tokens = 2 * shape.block_tokens;
  const auto large = KvPages::Fill(a, doubled), small = KvPages::Fill(b, shape);
  if (!bench.Check(large.ok() && small.ok(), "no room for pages of both lengths")) return;
  AttentionCall of_large(*large, {}), of_small(*small, {});
  const Rounds seen = TakeTurns({of_large.side("128"), of_small.side("64")}, rounds);
  bench.Check(of_large.status().ok() && of_small.status().ok(), of_large.status().ToString());
  Tell(bench, {absl::StrCat("decode ", shape.tokens / 1024, "K in blocks of 128 beside 64"),
               {{"median_us", seen.median_us(0)},
                {"blocks_of_64_us", seen.median_us(1)},
                {"speedup_ratio", seen.RateRatio(0, 1)},
                {"spread_percent", seen.RateSpreadPercent(0, 1)}}});
}

// One layer's units with their first `tokens` tokens alone; every other byte is 0xff: NaN as a
// number, a scale and a bias.
std::vector<std::byte> CutWithNan(const KvShape& of, const std::byte* units, uint32_t tokens) {
  std::vector<std::byte> cut;
  for (const quant::Side side : {quant::Side::kKey, quant::Side::kValue}) {
    const quant::UnitShape unit{
        .format = side == quant::Side::kKey ? of.format.key : of.format.value,
        .side = side,
        .dim = of.dim,
        .page_tokens = of.block_tokens};
    const uint64_t unit_bytes = quant::LayoutOf(unit).unit_bytes;
    for (uint32_t head = 0; head < of.kv_heads; ++head) {
      const size_t at = cut.size();
      cut.resize(at + unit_bytes, std::byte{0xff});
      quant::CopyTokens({unit, units + at, 0}, {unit, cut.data() + at, 0}, tokens);
    }
  }
  return cut;
}

// A sequence that ends inside its last block, whose other slots hold NaN: outputs that show it.
uint64_t LeaksOf(const KvPages& pages, uint32_t tokens, kernels::AttentionMode mode) {
  const quant::BlockTable whole = pages.table(PageOrder::kCommit, 0).first(2);
  std::vector<quant::BlockTableEntry> table(whole.begin(), whole.end());
  const std::vector<std::byte> cut = CutWithNan(pages.shape(), table[1].units, tokens);
  table[1].tokens = tokens;
  AttentionCall clean(pages, {.mode = mode, .tokens = pages.shape().block_tokens + tokens});
  AttentionCall padded(pages, {.mode = mode, .tokens = pages.shape().block_tokens + tokens});
  clean.RunOver(table, pages.formats());
  table[1].units = cut.data();
  padded.RunOver(table, pages.formats());
  if (!clean.status().ok() || !padded.status().ok()) return clean.out().size();
  uint64_t leaks = 0;
  for (size_t i = 0; i < clean.out().size(); ++i) leaks += !(clean.out()[i] == padded.out()[i]);
  return leaks;
}

void Padding(Bench& bench, PageStore& store) {
  uint64_t leaks = 0, calls = 0;
  for (const KernelFormat& format : KernelFormats()) {
    const auto pages =
        KvPages::Fill(store, {.format = format.format, .tokens = 128, .layers = 1, .sequences = 1});
    if (!bench.Check(pages.ok(), pages.status().ToString())) return;
    for (const uint32_t tokens : {1u, 15u, 17u, 33u, 63u}) {
      for (const auto mode : {kernels::AttentionMode::kPrecise, kernels::AttentionMode::kFast}) {
        leaks += LeaksOf(*pages, tokens, mode);
        ++calls;
      }
    }
  }
  bench.Judge({.name = "K-padding full of NaN, every format and mode",
               .ours = absl::StrCat(leaks, " outputs differ"),
               .reference = "the same tokens before others",
               .measure = "differing",
               .seen = static_cast<double>(leaks),
               .limit = 0,
               .runs = calls});
}

}  // namespace

void KernelsBatch(Bench& bench, KernelMemory& memory) {
  const uint64_t rounds = bench.Parameter("batch_rounds", 2, 9, 31);
  const auto tokens = static_cast<uint32_t>(bench.Parameter("batch_tokens", 1024, 16384));
  const KvShape shape{.format = FormatNamed(KernelFormats(), "8/4 tiled").format, .tokens = tokens};
  Padding(bench, memory.arena());
  {
    const auto pages = KvPages::Fill(memory.arena(), shape);
    if (!bench.Check(pages.ok(), pages.status().ToString())) return;
    Rows(bench, *pages, rounds);
    Cascade(bench, *pages, rounds);
  }
  const auto beside = MakeArenaStore(FolderForArenas(bench), memory.bytes());
  Blocks(bench, memory.arena(), beside.ok() ? **beside : memory.private_pages(), shape, rounds);
}

}  // namespace prefixd::bench
