// Attention on the GPU against the CPU's scalar oracle.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "tests/cuda/attend_case.h"
#include "tests/cuda/gpu_attention.h"

namespace prefixd::cuda {
namespace {

// The bound is relative to the root mean square of the results. Tensor cores take queries and
// weights as 11 bits, so errors grow with the scores; f16 and bf16 queries are exact. Over long
// contexts of normally distributed values it is below 4e-4 (prefixd-bench-cuda), over a few tokens
// up to twice that.
double BoundOf(const AttendCase& it) {
  if (it.precise) return 2e-5;
  return it.query_scale > 1 ? 2e-3 : 1e-3;
}
// The largest single error is a few times as large.
constexpr double kOfLargest = 4;

uint32_t CountOfCases() {
  const char* given = std::getenv("PREFIXD_CUDA_CASES");
  return given == nullptr ? 10000 : static_cast<uint32_t>(std::strtoul(given, nullptr, 10));
}

// The oracle computes on all cores while the GPU attends.
void CompareWithOracle(uint32_t cases, AttendCase (*draw)(uint32_t)) {
  const uint32_t ahead = 4 * std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::future<PreparedCase>> coming;
  std::map<std::string, double> worst;
  uint32_t failures = 0;
  for (uint32_t i = 0, next = 0; i < cases && failures < 10; ++i) {
    for (; next < cases && next < i + ahead; ++next) {
      coming.push_back(std::async(std::launch::async, [=] { return Prepare(draw(next)); }));
    }
    const PreparedCase it = coming[i].get();
    const std::vector<float> got = AttendOnGpu(it);
    const double error =
        std::max(RelativeRms(got, it.want), RelativeError(got, it.want) / kOfLargest);
    const std::string kind = it.shape.precise           ? "precise"
                             : it.shape.query_scale > 1 ? "large scores"
                                                        : "small scores";
    worst[kind] = std::max(worst[kind], error);
    EXPECT_LE(error, BoundOf(it.shape)) << ToString(it.shape);
    if (!(error <= BoundOf(it.shape))) ++failures;
  }
  for (const auto& [kind, error] : worst) {
    std::cout << cases << " cases, largest error of " << kind << ": " << error << "\n";
  }
}

TEST(AttendTest, C7_RandomCasesAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  CompareWithOracle(CountOfCases(), RandomCase);
}

TEST(AttendTest, C2_RandomCasesOfManyRowsAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  CompareWithOracle(CountOfCases() / 10, RandomPrefillCase);
}

AttendCase RowsOf(uint32_t rows, std::vector<kernels::BlockShape> blocks, uint32_t dim = 128) {
  AttendCase it;
  it.layer = {.kv_heads = 2, .key_dim = dim, .value_dim = dim};
  it.formats = {{quant::MlxAffineFormat(8, 64, quant::Dtype::kF16),
                 quant::MlxAffineFormat(4, 64, quant::Dtype::kF16)},
                {quant::RawFormat(quant::Dtype::kBf16), quant::RawFormat(quant::Dtype::kBf16)}};
  it.query_rows = rows;
  it.group = 4;
  it.query_dtype = PREFIXD_BF16;
  uint32_t tokens = 0;
  for (const auto& block : blocks) tokens += block.tokens;
  it.sequences = {std::move(blocks)};
  it.first_positions = {tokens - rows};
  return it;
}

void CompareManyRowsAtTheEdges(uint32_t dim) {
  using Blocks = std::vector<kernels::BlockShape>;
  const Blocks full(9, {.tokens = 64, .page_tokens = 64, .format = 0});
  Blocks partial = full, one = full, mixed = full, window;
  partial.push_back({.tokens = 37, .page_tokens = 64, .format = 0});
  one.push_back({.tokens = 1, .page_tokens = 64, .format = 0});
  mixed.push_back({.tokens = 200, .page_tokens = 256, .format = 1});
  std::vector<AttendCase> cases = {RowsOf(64, full, dim),    RowsOf(100, partial, dim),
                                   RowsOf(33, one, dim),     RowsOf(150, mixed, dim),
                                   RowsOf(576, full, dim),   RowsOf(9, partial, dim),
                                   RowsOf(160, partial, dim)};
  cases.back().window = 70;
  cases.back().sink_tokens = 5;
  cases.push_back(RowsOf(2048, Blocks(32, {.tokens = 64, .page_tokens = 64, .format = 0}), dim));
  cases.back().layer.kv_heads = 1;
  cases.push_back(RowsOf(17, Blocks(150, {.tokens = 64, .page_tokens = 64, .format = 0}), dim));
  Blocks raw(3, {.tokens = 256, .page_tokens = 256, .format = 1});
  raw.push_back({.tokens = 100, .page_tokens = 256, .format = 1});
  cases.push_back(RowsOf(300, raw, dim));
  // Each thread block has more pages than it looks at together.
  cases.push_back(RowsOf(160, Blocks(540, {.tokens = 8, .page_tokens = 8, .format = 0}), dim));
  for (const AttendCase& it : cases) {
    const PreparedCase ready = Prepare(it);
    EXPECT_LE(RelativeRms(AttendOnGpu(ready), ready.want), 5e-4) << ToString(it);
  }
}
TEST(AttendTest, ManyRowsAtTheEdgesAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  CompareManyRowsAtTheEdges(128);
}
TEST(AttendTest, ManyRowsOfWideHeadsAtTheEdgesAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  CompareManyRowsAtTheEdges(256);
}

TEST(AttendTest, ManyRowsOverPagesOfAPinnedArenaAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  AttendCase it = RowsOf(70, {{.tokens = 64, .page_tokens = 64, .format = 0},
                              {.tokens = 200, .page_tokens = 256, .format = 1},
                              {.tokens = 37, .page_tokens = 64, .format = 0}});
  const quant::TensorFormat tiled =
      quant::Tiled(quant::MlxAffineFormat(8, 64, quant::Dtype::kBf16));
  it.formats[1] = {tiled, tiled};
  const PreparedCase ready = Prepare(it);
  EXPECT_LE(RelativeRms(AttendOnArena(ready), ready.want), 5e-4);
}

// bf16 reaches further than the prefill kernel's products, to both sides: such calls are computed
// by the generic kernel.
void CompareBeyondF16(float element_scale, uint8_t bits, uint32_t dim) {
  AttendCase it = RowsOf(40,
                         {{.tokens = 64, .page_tokens = 64, .format = 0},
                          {.tokens = 64, .page_tokens = 64, .format = 0}},
                         dim);
  it.formats = {{quant::MlxAffineFormat(bits, 64, quant::Dtype::kBf16),
                 quant::MlxAffineFormat(bits, 64, quant::Dtype::kBf16)},
                {quant::RawFormat(quant::Dtype::kBf16), quant::RawFormat(quant::Dtype::kBf16)}};
  it.layer.element_scale = element_scale;
  it.query_scale = 1 / element_scale;
  for (const uint32_t format : {0u, 1u}) {
    for (kernels::BlockShape& block : it.sequences[0]) block.format = format;
    const PreparedCase ready = Prepare(it);
    EXPECT_LE(RelativeRms(AttendOnGpu(ready), ready.want), 2e-5) << element_scale << ", " << format;
  }
}
TEST(AttendTest, ManyRowsOverElementsBeyondF16AreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  CompareBeyondF16(1e6f, 8, 128);
  CompareBeyondF16(1e6f, 8, 256);
}
TEST(AttendTest, ManyRowsOverElementsTooSmallForF16AreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  CompareBeyondF16(1e-6f, 4, 128);
  CompareBeyondF16(1e-6f, 4, 256);
}

// K alone would do for f16.
TEST(AttendTest, ManyRowsOverValuesTooSmallForF16AreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  for (const uint32_t dim : {128u, 256u}) {
    for (const float key_scale : {1.0f, 1e-6f}) {
      AttendCase it = RowsOf(40,
                             {{.tokens = 64, .page_tokens = 64, .format = 1},
                              {.tokens = 64, .page_tokens = 64, .format = 1}},
                             dim);
      it.layer.element_scale = key_scale;
      it.layer.value_scale = key_scale == 1 ? 1e-6f : 1e6f;
      it.query_scale = 1 / key_scale;
      const PreparedCase ready = Prepare(it);
      EXPECT_LE(RelativeRms(AttendOnGpu(ready), ready.want), 2e-5) << dim << ", " << key_scale;
    }
  }
}

// Device memory of which nothing is left but a few MiB.
class FullMemory {
 public:
  FullMemory() {
    for (size_t bytes = size_t{1} << 30; bytes >= size_t{1} << 21;) {
      size_t left = 0, all = 0;
      void* chunk = nullptr;
      EXPECT_EQ(cudaMemGetInfo(&left, &all), cudaSuccess);
      if (left < bytes + (size_t{16} << 20) || cudaMalloc(&chunk, bytes) != cudaSuccess) {
        cudaGetLastError();
        bytes /= 2;
      } else {
        chunks_.push_back(chunk);
      }
    }
  }
  FullMemory(const FullMemory&) = delete;
  FullMemory& operator=(const FullMemory&) = delete;
  ~FullMemory() {
    for (void* chunk : chunks_) cudaFree(chunk);
  }

 private:
  std::vector<void*> chunks_;
};

TEST(AttendTest, ManyRowsForWhoseTilesThereIsNoMemoryAreComputedWithoutTiles) {
  SKIP_WITHOUT_GPU();
  AttendCase it = RowsOf(
      9, std::vector<kernels::BlockShape>(96, {.tokens = 64, .page_tokens = 64, .format = 1}));
  it.layer.kv_heads = 16;  // 101 MB of tiles
  const PreparedCase ready = Prepare(it);
  std::unique_ptr<FullMemory> full;
  const std::vector<float> got = AttendOnGpu(ready, [&] { full = std::make_unique<FullMemory>(); });
  EXPECT_LE(RelativeRms(got, ready.want), 2e-5) << "the precise kernel's error";
}

// Later scores are far larger than the first ones: what was summed before is rescaled.
TEST(AttendTest, ManyRowsWhoseScoresGrowAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  using Blocks = std::vector<kernels::BlockShape>;
  for (const uint32_t dim : {128u, 256u}) {
    AttendCase it = RowsOf(200, Blocks(40, {.tokens = 64, .page_tokens = 64, .format = 0}), dim);
    it.query_scale = 8;
    const PreparedCase ready = Prepare(it);
    EXPECT_LE(RelativeRms(AttendOnGpu(ready), ready.want), 2e-3) << ToString(it);
  }
}

// The context begins with pages of codes in rows, which the prefill kernel expands, and ends with
// pages of raw elements, which are expanded to tiles before.
AttendCase RowsOverMixedPages(uint32_t rows, uint32_t pages_of_codes, uint32_t pages_of_raw) {
  std::vector<kernels::BlockShape> blocks(pages_of_codes,
                                          {.tokens = 64, .page_tokens = 64, .format = 0});
  blocks.insert(blocks.end(), pages_of_raw, {.tokens = 200, .page_tokens = 256, .format = 1});
  blocks.push_back({.tokens = 37, .page_tokens = 64, .format = 1});
  return RowsOf(rows, blocks);
}

TEST(AttendTest, ManyRowsOverPartialPagesAreLeftToTensorCores) {
  SKIP_WITHOUT_GPU();
  for (const bool tiled : {false, true}) {
    AttendCase it = RowsOverMixedPages(70, 2, 1);
    if (tiled) it.formats[1] = {quant::Tiled(it.formats[0].key), quant::Tiled(it.formats[0].value)};
    const std::vector<float> got = AttendOnGpu(Prepare(it));
    it.precise = true;
    EXPECT_NE(got, AttendOnGpu(Prepare(it))) << "the exact kernel computed them; tiled: " << tiled;
  }
}

TEST(AttendTest, ManyRowsOverSequencesThatAreSetAgainAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  const PreparedCase few = Prepare(RowsOverMixedPages(70, 2, 0));
  const PreparedCase many = Prepare(RowsOverMixedPages(70, 20, 9));
  const PreparedCase no_tiles =
      Prepare(RowsOf(70, {{.tokens = 90, .page_tokens = 96, .format = 0}}));
  GpuAttention attention(few.shape);
  for (const PreparedCase* it : {&few, &many, &no_tiles, &few}) {
    attention.Set(*it);
    EXPECT_LE(RelativeRms(attention.Attend(*it), it->want), 5e-4) << ToString(it->shape);
  }
}

TEST(AttendTest, ACallBeyondF16LeavesTheNextOneToTensorCores) {
  SKIP_WITHOUT_GPU();
  AttendCase it = RowsOverMixedPages(70, 2, 1);
  it.formats[0] = it.formats[1];  // bf16 holds the large elements
  const PreparedCase usual = Prepare(it);
  it.layer.element_scale = 1e6f;
  const PreparedCase large = Prepare(it);
  GpuAttention attention(it);
  attention.Set(usual);
  const std::vector<float> want = attention.Attend(usual);
  attention.Set(large);
  EXPECT_LE(RelativeRms(attention.Attend(large), large.want), 2e-5) << "the exact kernel's error";
  attention.Set(usual);
  EXPECT_EQ(attention.Attend(usual), want);
}

TEST(AttendTest, AGraphOfManyRowsGivesTheBitsOfTheCallAtEachLaunch) {
  SKIP_WITHOUT_GPU();
  for (const float element_scale :
       {1.0f, 1e6f}) {  // tensor cores compute the first, the exact kernel the second
    AttendCase it = RowsOverMixedPages(70, 4, 3);
    it.layer.element_scale = element_scale;
    it.formats[0] = it.formats[1];
    const PreparedCase ready = Prepare(it);
    GpuAttention attention(it);
    attention.Set(ready);
    const std::vector<float> want = attention.Attend(ready);
    EXPECT_LE(RelativeRms(want, ready.want), 5e-4);
    for (const auto& got : attention.AttendInGraph(ready)) EXPECT_EQ(got, want) << element_scale;
  }
}

TEST(AttendTest, SequencesThatSharePagesAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  for (const uint32_t rows : {1u, 70u}) {
    AttendCase it = RowsOverMixedPages(rows, 4, 2);
    it.share_pages = true;
    it.sequences.assign(3, it.sequences[0]);
    it.sequences[1].back().tokens = 9;  // of the page's 37
    it.sequences[2].resize(5);
    it.first_positions = {it.first_positions[0], it.first_positions[0] - 28, 456 - rows};
    const PreparedCase ready = Prepare(it);
    EXPECT_LE(RelativeRms(AttendOnGpu(ready), ready.want), BoundOf(it)) << ToString(it);
  }
}

// One kv head of a long context: each processor has a part of it.
TEST(AttendTest, MorePartsThanAreMergedAtATimeAreLikeTheScalarOracle) {
  SKIP_WITHOUT_GPU();
  AttendCase it;
  it.layer = {.kv_heads = 1, .key_dim = 128, .value_dim = 128};
  it.formats = {{quant::MlxAffineFormat(8, 64, quant::Dtype::kF16),
                 quant::MlxAffineFormat(4, 64, quant::Dtype::kF16)}};
  it.group = 4;
  it.sequences.emplace_back(1500, kernels::BlockShape{.tokens = 16, .page_tokens = 16});
  it.first_positions = {1500 * 16 - 1};
  const PreparedCase ready = Prepare(it);
  EXPECT_LE(RelativeRms(AttendOnGpu(ready), ready.want), BoundOf(it));
}

// A kernel's limit of shared memory belongs to all attentions that launch it.
TEST(AttendTest, AnAttentionMadeBetweenSettingAndAttendingChangesNothing) {
  SKIP_WITHOUT_GPU();
  AttendCase it;
  it.layer = {.kv_heads = 2, .key_dim = 128, .value_dim = 128};
  const quant::TensorFormat format = quant::MlxAffineFormat(8, 64, quant::Dtype::kBf16);
  it.formats = {{format, format}};
  it.query_rows = 8;
  it.group = 4;
  it.sequences = {{{.tokens = 64, .page_tokens = 64, .format = 0},
                   {.tokens = 64, .page_tokens = 64, .format = 0}}};
  it.first_positions = {100};
  AttendCase other = it;  // whose pages leave room for fewer of them
  other.query_rows = other.group = 1;
  other.sequences = {{{.tokens = 300, .page_tokens = 300, .format = 0}}};
  const PreparedCase first = Prepare(it), second = Prepare(other);
  const std::vector<float> got = AttendOnGpu(first, [&] { AttendOnGpu(second); });
  EXPECT_LE(RelativeRms(got, first.want), BoundOf(it));
}

}  // namespace
}  // namespace prefixd::cuda
