// Every option of the public Attend reaches the kernels.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/attention.h"
#include "prefixd/attention.h"
#include "quant/block_table.h"
#include "tests/client/daemon.h"

namespace prefixd {
namespace {

constexpr uint32_t kTokens = 12, kHeads = 2, kDim = 32;

// One page of raw floats: K units of both heads, then V units.
std::vector<float> Page() {
  std::vector<float> page(2 * kHeads * kTokens * kDim);
  for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<float>(i * 37 % 101) / 50 - 1;
  return page;
}

std::vector<float> ByKernels(const std::vector<float>& page, const std::vector<float>& q,
                             const kernels::AttentionShape& shape) {
  const quant::BlockTableEntry entry{.units = reinterpret_cast<const std::byte*>(page.data()),
                                     .page_tokens = kTokens,
                                     .tokens = kTokens};
  const quant::KvFormat format{quant::RawFormat(quant::Dtype::kF32),
                               quant::RawFormat(quant::Dtype::kF32)};
  std::vector<float> out(kHeads * kDim);
  EXPECT_TRUE(kernels::AttendScalar({&entry, 1}, {&format, 1}, q.data(), out.data(), shape).ok());
  return out;
}

TEST(AttendOptionsTest, EveryOptionReachesTheKernels) {
  const std::vector<float> page = Page();
  const std::vector<float> sinks = {0.5f, 1.5f};
  std::vector<float> q(kHeads * kDim);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 7) - 3;
  const AttendOptions options{.query_heads = kHeads,
                              .kv_heads = kHeads,
                              .key_dim = kDim,
                              .value_dim = kDim,
                              .first_position = kTokens - 1,
                              .scale = 0.3f,
                              .window = 4,
                              .sink_tokens = 2,
                              .soft_cap = 3,
                              .sink_logits = sinks.data()};
  const kernels::AttentionShape plain{.query_heads = kHeads,
                                      .kv_heads = kHeads,
                                      .key_dim = kDim,
                                      .value_dim = kDim,
                                      .first_position = kTokens - 1,
                                      .scale = 0.3f};
  kernels::AttentionShape shape = plain;
  shape.window = 4;
  shape.sink_tokens = 2;
  shape.soft_cap = 3;
  shape.sink_logits = sinks.data();
  const BlockTableEntry entry{.units = reinterpret_cast<const std::byte*>(page.data()),
                              .page_tokens = kTokens,
                              .tokens = kTokens};
  const KvFormat format = Raw(Dtype::kF32);
  std::vector<float> out(kHeads * kDim);
  ASSERT_TRUE(Attend({&entry, 1}, {&format, 1}, q.data(), out.data(), options).ok());
  const std::vector<float> want = ByKernels(page, q, shape);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], want[i], 1e-4) << i;
  // Each of them counts here.
  for (const int without : {0, 1, 2, 3}) {
    kernels::AttentionShape less = shape;
    if (without == 0) less.window = 0;
    if (without == 1) less.sink_tokens = 0;
    if (without == 2) less.soft_cap = 0;
    if (without == 3) less.sink_logits = nullptr;
    const std::vector<float> other = ByKernels(page, q, less);
    double difference = 0;
    for (size_t i = 0; i < out.size(); ++i)
      difference += std::abs(double{other[i]} - double{want[i]});
    EXPECT_GT(difference, 1e-2) << "without option " << without;
  }
}

TEST(AttendOptionsTest, AForgottenPositionIsRefused) {
  const std::vector<float> page = Page();
  const BlockTableEntry entry{.units = reinterpret_cast<const std::byte*>(page.data()),
                              .page_tokens = kTokens,
                              .tokens = kTokens};
  const KvFormat format = Raw(Dtype::kF32);
  std::vector<float> q(kHeads * kDim), out(kHeads * kDim);
  const AttendOptions options{
      .query_heads = kHeads, .kv_heads = kHeads, .key_dim = kDim, .value_dim = kDim, .scale = 0.3f};
  const Status status = Attend({&entry, 1}, {&format, 1}, q.data(), out.data(), options);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message, "attend: first_position, of query row 0, is not set");
}

TEST(AttendOptionsTest, ASequenceAttendsWithWhatItsLayerSays) {
  const TempDirectory directory;  // nobody listens: the sequence's own pages will do
  SpaceSpec spec = SmallSpace(Raw(Dtype::kF32));
  spec.layers[1].kind = LayerKind::kSliding;
  spec.layers[1].window = 16;
  spec.layers[1].sink_tokens = 2;
  Client client({.address = directory.address()});
  Result<Space> space = client.OpenSpace(spec);
  ASSERT_TRUE(space.ok()) << space.status.message;
  const std::vector<uint32_t> tokens = Tokens(100, 1);
  Sequence sequence = space.value().Begin(tokens);
  AppendTokens(sequence, spec, tokens, 0, 100);
  for (const int layer : {0, 1}) {
    const LayerSpec& of = spec.layers[static_cast<size_t>(layer)];
    std::vector<float> q(of.kv_heads * of.key_dim);
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 7) - 3;
    std::vector<float> want(of.kv_heads * of.value_dim), out(want.size());
    const AttendOptions all{.query_heads = of.kv_heads,
                            .kv_heads = of.kv_heads,
                            .key_dim = of.key_dim,
                            .value_dim = of.value_dim,
                            .first_position = 99,
                            .scale = 0.3f,
                            .window = of.window,
                            .sink_tokens = of.sink_tokens};
    ASSERT_TRUE(Attend(sequence.block_table(layer), of.formats, q.data(), want.data(), all).ok());
    const AttendOptions few{.query_heads = of.kv_heads, .first_position = 99, .scale = 0.3f};
    const Status status = sequence.Attend(layer, q.data(), out.data(), few);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(out, want) << "layer " << layer;
  }
  AttendOptions wrong{.query_heads = 2, .kv_heads = 1, .first_position = 99, .scale = 0.3f};
  EXPECT_EQ(sequence.Attend(0, nullptr, nullptr, wrong).code, StatusCode::kInvalidArgument);
  EXPECT_EQ(sequence.Attend(9, nullptr, nullptr, wrong).message, "attend: no layer 9");
}

// Of a sliding layer, blocks between the sinks and the window may be absent: the bits are those of
// the whole table.
TEST(AttendOptionsTest, BlocksThatNoRowSeesMayBeAbsent) {
  constexpr uint32_t kBlock = 64, kBlocks = 8;
  for (const AttendMode mode :
       {AttendMode::kPrecise, AttendMode::kFast, AttendMode::kFastPrefill}) {
    for (const KvFormat& format :
         {Raw(Dtype::kF32), MlxAffine(8, 32, Dtype::kF16), Tiled(MlxAffine(8, 32, Dtype::kF16)),
          Tiled(MlxAffine(8, 32, 4, 32, Dtype::kF16))}) {
      std::vector<std::byte> page(kHeads * kBlock * kDim * 8 + 4096);
      for (size_t i = 0; i < page.size(); ++i)
        page[i] = std::byte{static_cast<uint8_t>(i * 7 % 59)};
      std::byte* units = page.data() + 128 - reinterpret_cast<uintptr_t>(page.data()) % 128;
      std::vector<BlockTableEntry> table(kBlocks,
                                         {.units = units, .page_tokens = kBlock, .tokens = kBlock});
      for (const uint32_t rows : {1u, 20u}) {
        std::vector<float> q(rows * kHeads * kDim);
        for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 7) - 3;
        AttendOptions options{.query_rows = rows,
                              .query_heads = kHeads,
                              .kv_heads = kHeads,
                              .key_dim = kDim,
                              .value_dim = kDim,
                              .first_position = kBlocks * kBlock - rows,
                              .scale = 0.01f,
                              .mode = mode,
                              .window = 100,
                              .sink_tokens = 4};
        std::vector<float> whole(q.size()), out(q.size());
        ASSERT_TRUE(Attend(table, {&format, 1}, q.data(), whole.data(), options).ok());
        std::vector<BlockTableEntry> holes = table;
        for (uint32_t b = 1; b < kBlocks - 2; ++b) holes[b].units = nullptr;
        const Status status = Attend(holes, {&format, 1}, q.data(), out.data(), options);
        ASSERT_TRUE(status.ok() || rows > 1) << status.message;
        if (rows > 1) {  // the first row's window begins a block earlier
          holes[kBlocks - 3].units = units;
          ASSERT_TRUE(Attend(holes, {&format, 1}, q.data(), out.data(), options).ok());
        }
        EXPECT_EQ(out, whole);
        holes[0].units = nullptr;
        EXPECT_EQ(Attend(holes, {&format, 1}, q.data(), out.data(), options).message,
                  "attend: block 0 has no units")
            << "the sinks are seen";
        holes[0].units = units;
        holes[kBlocks - 2].units = nullptr;
        EXPECT_FALSE(Attend(holes, {&format, 1}, q.data(), out.data(), options).ok());
      }
    }
  }
}

}  // namespace
}  // namespace prefixd
