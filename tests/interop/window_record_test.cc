// Rotating caches that have wrapped, as one run of bytes: by the temporal order of formats.md 1.5.
#include "interop/window_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace prefixd::interop {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// One head, K of one half and V of two, whose bytes say their position. keep 1, max_size 3.
KvRows Wrapped(uint32_t rows_here, uint32_t offset) {
  KvRows rows;
  rows.kv_heads = 1;
  rows.rows = rows_here;
  rows.offset = offset;
  rows.keep = 1;
  rows.max_size = 3;
  rows.key.format = rows.value.format = quant::RawFormat(quant::Dtype::kF16);
  rows.key.dim = 1;
  rows.value.dim = 2;
  for (uint32_t i = 0; i < rows_here; ++i) {
    const auto position = static_cast<uint8_t>(rows.PositionOf(i));
    for (int byte = 0; byte < 2; ++byte) rows.key.codes.push_back(std::byte{position});
    for (int byte = 0; byte < 4; ++byte) {
      rows.value.codes.push_back(static_cast<std::byte>(100 + position));
    }
  }
  return rows;
}

std::vector<int> NumbersOf(const std::vector<std::byte>& bytes) {
  std::vector<int> numbers;
  for (const std::byte byte : bytes) numbers.push_back(std::to_integer<int>(byte));
  return numbers;
}

TEST(WindowRecordTest, HoldsTheKeptAndTheLastTokensOfKThenOfV) {
  const auto record = RecordOf(Wrapped(3, 7));
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_THAT(NumbersOf(*record),
              ElementsAre(0, 0, 5, 5, 6, 6,  //
                          100, 100, 100, 100, 105, 105, 105, 105, 106, 106, 106, 106));
}

// After several tokens at once mlx-lm has more rows than max_size for a while.
TEST(WindowRecordTest, RowsThatNothingAttendsOnAreLeftOut) {
  const auto whole = RecordOf(Wrapped(3, 7)), longer = RecordOf(Wrapped(5, 7));
  ASSERT_TRUE(whole.ok() && longer.ok()) << longer.status();
  EXPECT_EQ(*longer, *whole);
}

TEST(WindowRecordTest, RowsComeBackAtTheirOffset) {
  const KvRows rows = Wrapped(3, 7);
  const auto record = RecordOf(rows);
  ASSERT_TRUE(record.ok());
  const auto back = RowsOfRecord(Wrapped(3, 90), 7, *record);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->rows, 3u);
  EXPECT_EQ(back->offset, 7u);
  EXPECT_EQ(back->keep, 1u);
  EXPECT_EQ(back->max_size, 3u);
  EXPECT_EQ(back->key.codes, rows.key.codes);
  EXPECT_EQ(back->value.codes, rows.value.codes);
}

TEST(WindowRecordTest, WhatHasNotWrappedOrIsOfAnotherSizeIsRefused) {
  const auto refusal = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(RecordOf(Wrapped(3, 3)).status()),
              HasSubstr("at most 3 tokens, 1 of them kept, has not wrapped at offset 3"));
  EXPECT_THAT(refusal(RecordOf(Wrapped(2, 7)).status()),
              HasSubstr("at most 3 tokens holds 2 at offset 7"));
  const std::vector<std::byte> record(17);
  EXPECT_THAT(refusal(RowsOfRecord(Wrapped(3, 7), 7, record).status()),
              HasSubstr("of 17 bytes, 3 tokens in raw/f16 have 18"));
  EXPECT_THAT(refusal(RowsOfRecord(Wrapped(3, 7), 2, record).status()),
              HasSubstr("has not wrapped at offset 2"));
}

}  // namespace
}  // namespace prefixd::interop
