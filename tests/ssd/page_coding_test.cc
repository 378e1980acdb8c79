// Full-precision pages compressed on SSD: exact bytes back, or an error.
#include "ssd/page_coding.h"

#include "store_fixture.h"

namespace prefixd::ssd {
namespace {

// Elements with a constant upper half, as exponents nearly are.
std::vector<std::byte> Smooth(size_t page_bytes, size_t element_bytes, std::mt19937_64& random) {
  std::vector<std::byte> page(page_bytes);
  for (size_t i = 0; i < page_bytes; ++i) {
    page[i] =
        i % element_bytes < element_bytes / 2 ? static_cast<std::byte>(random()) : std::byte{0x3f};
  }
  return page;
}

class PageCodingTest : public StoreTest {};

TEST_F(PageCodingTest, ElementsOfTwoAndFourBytesComeBackExactly) {
  PageCoder coder;
  for (const uint32_t element_bytes : {2u, 4u}) {
    for (const size_t page_bytes : {4u, 128u, 4096u, 1u << 20}) {
      const auto page = Smooth(page_bytes, element_bytes, random_);
      std::string coded = "before";
      const bool pays = coder.Append(page, element_bytes, &coded);
      EXPECT_EQ(pays, page_bytes >= 128) << page_bytes;
      if (!pays) {
        EXPECT_EQ(coded, "before");
        continue;
      }
      EXPECT_LT(coded.size(), page_bytes * 3 / 4 + 64);
      std::vector<std::byte> back(page_bytes);
      const auto bytes = base::AsBytes(std::string_view(coded).substr(6));
      ASSERT_TRUE(DecodePage(bytes, element_bytes, back).ok());
      EXPECT_TRUE(back == page);
    }
  }
}

TEST_F(PageCodingTest, WhatIsNoPageOfThatLengthIsDataLoss) {
  PageCoder coder;
  const auto page = Smooth(4096, 2, random_);
  std::string coded;
  ASSERT_TRUE(coder.Append(page, 2, &coded));
  const auto bytes = base::AsBytes(std::string_view(coded));
  std::vector<std::byte> back(4096), longer(8192);
  EXPECT_EQ(DecodePage(bytes.first(bytes.size() - 1), 2, back).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodePage(bytes, 2, longer).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodePage(bytes, 3, back).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodePage({}, 2, back).code(), absl::StatusCode::kDataLoss);
}

TEST_F(PageCodingTest, ASegmentHoldsLessAndGivesBackThePage) {
  SegmentStore& store = Open();
  Page smooth = MakePage(1 << 20), noise = MakePage(1 << 20);
  smooth.bytes = Smooth(1 << 20, 2, random_);
  std::unique_ptr<SegmentWriter> writer = NewSegment(store);
  const uint64_t first = writer->AddPage(smooth.header, smooth.bytes, 2).value();
  const uint64_t second = writer->AddPage(noise.header, noise.bytes, 2).value();
  EXPECT_LT(writer->bytes(), (7u << 20) / 4);
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(Read(store, first, smooth).ok());
  EXPECT_TRUE(Read(store, second, noise).ok());
  Page other = MakePage(1 << 19);
  EXPECT_EQ(Read(store, first, other).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace prefixd::ssd
