// What Attend refuses, and what it costs in memory.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "kernels/attention.h"
#include "tests/kernels/counting_new.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using testing::HasSubstr;

class AttentionArgumentsTest : public testing::Test {
 protected:
  const LayerShape layer_shape_{.kv_heads = 2, .key_dim = 64, .value_dim = 32};
  const PagedLayer layer_{layer_shape_,
                          {{quant::RawFormat(Dtype::kF32), quant::RawFormat(Dtype::kF32)}},
                          UniformBlocks(100, 64)};
  const std::vector<float> q_ = RandomFloats(10 * 4 * 64, 1);
  std::vector<float> out_ = std::vector<float>(10 * 4 * 32, -77.0f);
  std::vector<quant::BlockTableEntry> table_{layer_.table().begin(), layer_.table().end()};
  std::vector<quant::KvFormat> formats_{layer_.formats().begin(), layer_.formats().end()};
  AttentionShape shape_{.query_rows = 10,
                        .query_heads = 4,
                        .kv_heads = 2,
                        .key_dim = 64,
                        .value_dim = 32,
                        .first_position = 90,
                        .scale = 0.125f};

  void ExpectRefused(const std::string& why, const float* q, float* out) {
    for (auto* attend : {&Attend, &AttendScalar}) {
      const absl::Status status = attend(table_, formats_, q, out, shape_);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    }
    for (const float value : out_) EXPECT_EQ(value, -77.0f) << "written in spite of the refusal";
  }
  void ExpectRefused(const std::string& why) { ExpectRefused(why, q_.data(), out_.data()); }
};

TEST_F(AttentionArgumentsTest, TheFixtureItselfIsAccepted) {
  EXPECT_TRUE(Attend(table_, formats_, q_.data(), out_.data(), shape_).ok());
}

TEST_F(AttentionArgumentsTest, CountsOfZeroAreRefused) {
  const AttentionShape good = shape_;
  const auto expect = [&](uint32_t AttentionShape::*field, const char* why) {
    shape_ = good;
    shape_.*field = 0;
    ExpectRefused(why);
  };
  expect(&AttentionShape::query_rows, "attend: query_rows is 0");
  expect(&AttentionShape::query_heads, "attend: query_heads 0 is not a multiple of kv_heads 2");
  expect(&AttentionShape::kv_heads, "attend: kv_heads is 0");
  expect(&AttentionShape::key_dim, "attend: key_dim is 0");
  expect(&AttentionShape::value_dim, "attend: value_dim is 0");
  expect(&AttentionShape::threads, "attend: threads is 0");
}

TEST_F(AttentionArgumentsTest, HeadsThatDoNotGroupAreRefused) {
  shape_.query_heads = 5;
  ExpectRefused("query_heads 5 is not a multiple of kv_heads 2");
}

TEST_F(AttentionArgumentsTest, AScaleThatIsNotFiniteIsRefused) {
  shape_.scale = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused("scale is not finite");
}

TEST_F(AttentionArgumentsTest, AForgottenScaleIsRefused) {
  shape_.scale = 0;
  ExpectRefused("scale is 0, must be that of q.k, mostly 1 / sqrt(key_dim)");
}

TEST_F(AttentionArgumentsTest, ASoftCapThatIsNoPositiveNumberIsRefused) {
  shape_.soft_cap = -1;
  ExpectRefused("soft_cap is -1, must be 0 for none, or positive");
  shape_.soft_cap = std::numeric_limits<float>::infinity();
  ExpectRefused("soft_cap is inf");
  shape_.soft_cap = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused("soft_cap is nan");
}

TEST_F(AttentionArgumentsTest, SinksThatAreNoNumbersAreRefused) {
  std::vector<float> sinks(4, 1.0f);
  shape_.sink_logits = sinks.data();
  sinks[2] = std::numeric_limits<float>::quiet_NaN();
  ExpectRefused("the sink of head 2 is nan, must be a number or -inf");
  sinks[2] = std::numeric_limits<float>::infinity();
  ExpectRefused("the sink of head 2 is inf");
}

TEST_F(AttentionArgumentsTest, NullTensorsAreRefused) {
  ExpectRefused("q is null", nullptr, out_.data());
  ExpectRefused("out is null", q_.data(), nullptr);
}

TEST_F(AttentionArgumentsTest, ResultsThatWouldOverlapAreRefused) {
  shape_.out_head_stride = 31;
  ExpectRefused("results overlap: out_row_stride 124, out_head_stride 31");
  shape_.out_head_stride = 32;
  shape_.out_row_stride = 127;
  ExpectRefused("results overlap: out_row_stride 127, out_head_stride 32");
}

TEST_F(AttentionArgumentsTest, ATableThatIsTooShortIsRefused) {
  shape_.first_position = 91;
  ExpectRefused("the table holds 100 tokens, positions up to 100 are asked for");
  shape_.first_position = std::numeric_limits<uint32_t>::max();
  ExpectRefused("the table holds 100 tokens");
  table_.clear();
  ExpectRefused("the table holds 0 tokens");
}

TEST_F(AttentionArgumentsTest, ImpossibleEntriesAreRefused) {
  const quant::BlockTableEntry good = table_[1];
  table_[1].units = nullptr;
  ExpectRefused("block 1 has no units");
  table_[1] = good;
  table_[1].tokens = 65;
  ExpectRefused("block 1 has 65 tokens in 64 slots");
  table_[1] = good;
  table_[1].page_tokens = 0;
  ExpectRefused("block 1 has page_tokens 0");
  table_[1] = good;
  table_[1].format = 1;
  ExpectRefused("block 1 has format 1, 1 formats are given");
}

TEST_F(AttentionArgumentsTest, FormatsThatDoNotFitAreRefusedOnlyWhenUsed) {
  formats_.push_back(
      {quant::MlxAffineFormat(8, 64, Dtype::kF32), quant::MlxAffineFormat(8, 64, Dtype::kF32)});
  EXPECT_TRUE(Attend(table_, formats_, q_.data(), out_.data(), shape_).ok());
  std::fill(out_.begin(), out_.end(), -77.0f);
  table_[1].format = 1;
  ExpectRefused("value of format 1: ");
  formats_[1].key.bits = 7;
  ExpectRefused("key of format 1: ");
}

// Issue line: peak bytes allocated during attention are equal at 4K and 64K context.
TEST(AttentionMemoryTest, PeakBytesAreEqualAt4KAnd64KContext) {
  const LayerShape layer_shape{.kv_heads = 2, .key_dim = 32, .value_dim = 32};
  const quant::TensorFormat format = quant::MlxAffineFormat(4, 32, Dtype::kF16);
  const PagedLayer block(layer_shape, {{format, format}}, UniformBlocks(64, 64));
  for (const uint32_t rows : {1u, 3u}) {
    for (const uint32_t threads : {1u, 2u}) {
      std::vector<size_t> peaks;
      for (const uint32_t context : {4096u, 65536u}) {
        // The same block again and again: length is what matters here.
        const std::vector<quant::BlockTableEntry> table(context / 64, block.table()[0]);
        const AttentionShape shape{.query_rows = rows,
                                   .query_heads = 64,  // enough work at 4K for two threads
                                   .kv_heads = 2,
                                   .key_dim = 32,
                                   .value_dim = 32,
                                   .first_position = context - rows,
                                   .scale = 0.2f,
                                   .threads = threads};
        const std::vector<float> q = RandomFloats(rows * 64 * 32, 1);
        std::vector<float> out(rows * 64 * 32);
        const auto attend = [&] {
          return Attend(table, block.formats(), q.data(), out.data(), shape).ok();
        };
        ASSERT_TRUE(attend());  // starts threads that stay
        const AllocationWatch watch;
        ASSERT_TRUE(attend());
        peaks.push_back(watch.peak_bytes());
      }
      EXPECT_GT(peaks[0], 0u);
      // A helper thread lets go of its call when it comes to it, sooner or later.
      const size_t late = threads == 1 ? 0 : 1024;
      const auto [least, most] = std::minmax(peaks[0], peaks[1]);
      EXPECT_LE(most - least, late) << rows << " rows, " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace prefixd::kernels
