// AttendBatch against Attend of every sequence by itself.
#include "kernels/batch.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/kernels/dispatch_targets.h"
#include "tests/kernels/paged_layer.h"

namespace prefixd::kernels {
namespace {

using quant::Dtype;
using testing::HasSubstr;

// Blocks of one layer; a sequence is some of them, in any order.
class BatchTest : public testing::Test {
 protected:
  static constexpr uint32_t kGroup = 3;
  const LayerShape layer_shape_{.kv_heads = 2, .key_dim = 64, .value_dim = 96};
  const quant::KvFormat format_{quant::Tiled(quant::MlxAffineFormat(8, 64, Dtype::kF16)),
                                quant::Tiled(quant::MlxAffineFormat(4, 32, Dtype::kF16))};
  const PagedLayer layer_{layer_shape_, {format_}, UniformBlocks(64 * 100, 64)};
  AttentionShape shape_{.query_rows = 2,
                        .query_heads = 2 * kGroup,
                        .kv_heads = 2,
                        .key_dim = 64,
                        .value_dim = 96,
                        .scale = 0.125f,
                        .mode = AttentionMode::kFast};

  // `last_tokens` of the last block are in use, and the rows stand at the end.
  void AddSequence(const std::vector<size_t>& blocks, uint32_t last_tokens = 64) {
    std::vector<quant::BlockTableEntry> table;
    for (const size_t block : blocks) table.push_back(layer_.table()[block]);
    table.back().tokens = last_tokens;
    tables_.push_back(table);
    const size_t heads = size_t{shape_.query_rows} * shape_.query_heads;
    queries_.push_back(RandomFloats(heads * shape_.key_dim, static_cast<uint32_t>(tables_.size())));
    outs_.emplace_back(heads * shape_.value_dim, -77.0f);
    firsts_.push_back(static_cast<uint32_t>(blocks.size() - 1) * 64 + last_tokens -
                      shape_.query_rows);
  }

  std::vector<BatchItem> Items() {
    std::vector<BatchItem> items;
    for (size_t i = 0; i < tables_.size(); ++i) {
      items.push_back({.table = tables_[i],
                       .q = queries_[i].data(),
                       .out = outs_[i].data(),
                       .first_position = firsts_[i]});
    }
    return items;
  }

  void ExpectLikeSeparateCalls() {
    ASSERT_TRUE(AttendBatch(Items(), layer_.formats(), shape_).ok());
    for (size_t i = 0; i < tables_.size(); ++i) {
      std::vector<float> alone(outs_[i].size());
      AttentionShape shape = shape_;
      shape.first_position = firsts_[i];
      ASSERT_TRUE(
          Attend(tables_[i], layer_.formats(), queries_[i].data(), alone.data(), shape).ok());
      EXPECT_EQ(std::memcmp(outs_[i].data(), alone.data(), alone.size() * sizeof(float)), 0)
          << "sequence " << i;
    }
  }

  std::vector<std::vector<quant::BlockTableEntry>> tables_;
  std::vector<std::vector<float>> queries_, outs_;
  std::vector<uint32_t> firsts_;
};

std::vector<size_t> Range(size_t first, size_t count) {
  std::vector<size_t> blocks(count);
  for (size_t i = 0; i < count; ++i) blocks[i] = first + i;
  return blocks;
}
std::vector<size_t> Join(std::vector<size_t> a, const std::vector<size_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(BatchTest, SequencesThatShareAPrefixGetTheBitsOfSeparateCalls) {
  const std::vector<size_t> prefix = Range(0, 70);  // more than two runs
  AddSequence(Join(prefix, {80, 81}), 17);
  AddSequence(prefix);
  AddSequence(Join(prefix, {82}));
  AddSequence(Join(prefix, {80, 83}), 2);  // shares a block more with the first one
  ForEachTarget([&](const char*) { ExpectLikeSeparateCalls(); });
}

TEST_F(BatchTest, GroupsOfSequencesAndSequencesOfNoGroupGetTheBitsOfSeparateCalls) {
  AddSequence(Join(Range(0, 5), {50}));
  AddSequence(Join(Range(10, 5), {51}), 33);
  AddSequence({60});
  AddSequence(Join(Range(0, 5), {52}));
  AddSequence(Join(Range(10, 3), {53, 54}));
  AddSequence({60});
  ExpectLikeSeparateCalls();
}

TEST_F(BatchTest, SharedBlocksOfWhichOneSequenceUsesFewerTokensAreNotMixedUp) {
  AddSequence(Range(0, 3));
  AddSequence(Range(0, 3), 20);
  AddSequence(Range(0, 4), 2);
  ExpectLikeSeparateCalls();
}

TEST_F(BatchTest, ACutBlockInTheMiddleMovesWhatFollows) {
  AddSequence(Range(0, 4));
  AddSequence(Range(0, 4));
  tables_[1][1].tokens = 20;
  firsts_[1] -= 44;
  ExpectLikeSeparateCalls();
}

TEST_F(BatchTest, RowsThatStandBeforeTheEndOfASharedBlockSeeOnlyTheirPast) {
  AddSequence(Range(0, 3));
  AddSequence(Range(0, 3));
  AddSequence(Range(0, 3));
  firsts_[0] = 100;
  firsts_[2] = 5;
  ExpectLikeSeparateCalls();
}

TEST_F(BatchTest, ThreadsChangeNothing) {
  for (size_t i = 0; i < 9; ++i) AddSequence(Join(Range(0, 40), {50 + i}));
  shape_.threads = 3;
  ExpectLikeSeparateCalls();
}

TEST_F(BatchTest, PreciseModeGetsTheBitsOfSeparateCalls) {
  AddSequence(Join(Range(0, 5), {50}));
  AddSequence(Join(Range(0, 5), {51}));
  shape_.mode = AttentionMode::kPrecise;
  ExpectLikeSeparateCalls();
}

TEST_F(BatchTest, AnEmptyBatchIsDone) {
  EXPECT_TRUE(AttendBatch({}, layer_.formats(), shape_).ok());
}

TEST_F(BatchTest, ABadItemIsNamedAndNothingIsWritten) {
  AddSequence(Range(0, 3));
  AddSequence(Range(0, 3));
  firsts_[1] = 191;
  const absl::Status status = AttendBatch(Items(), layer_.formats(), shape_);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("batch: item 1: attend: the table holds 192 tokens"));
  for (const std::vector<float>& out : outs_) {
    for (const float value : out) EXPECT_EQ(value, -77.0f);
  }
}

}  // namespace
}  // namespace prefixd::kernels
