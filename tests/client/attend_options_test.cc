// Every option of the public Attend reaches the kernels.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/attention.h"
#include "prefixd/attention.h"
#include "quant/block_table.h"

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
                              .sinks = sinks.data()};
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
  shape.sinks = sinks.data();
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
    if (without == 3) less.sinks = nullptr;
    const std::vector<float> other = ByKernels(page, q, less);
    double difference = 0;
    for (size_t i = 0; i < out.size(); ++i)
      difference += std::abs(double{other[i]} - double{want[i]});
    EXPECT_GT(difference, 1e-2) << "without option " << without;
  }
}

}  // namespace
}  // namespace prefixd
