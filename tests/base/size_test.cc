#include "base/size.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace prefixd::base {
namespace {

using ::testing::HasSubstr;

uint64_t BytesOf(const std::string& text) {
  const absl::StatusOr<Size> size = ParseSize(text);
  EXPECT_TRUE(size.ok()) << text;
  return size.ok() ? size->bytes : 0;
}

TEST(SizeTest, EveryUnitIsRead) {
  EXPECT_EQ(BytesOf("1000000"), 1'000'000u);
  EXPECT_EQ(BytesOf("7B"), 7u);
  EXPECT_EQ(BytesOf("1KiB"), 1024u);
  EXPECT_EQ(BytesOf("512 MiB"), 512u << 20);
  EXPECT_EQ(BytesOf("2GiB"), uint64_t{2} << 30);
  EXPECT_EQ(BytesOf("1.5TiB"), uint64_t{3} << 39);
  EXPECT_EQ(BytesOf("3kB"), 3000u);
  EXPECT_EQ(BytesOf("3MB"), 3'000'000u);
  EXPECT_EQ(BytesOf("0.5GB"), 500'000'000u);
  EXPECT_EQ(BytesOf("1TB"), 1'000'000'000'000u);
  EXPECT_EQ(BytesOf("0"), 0u);
}

TEST(SizeTest, AnExactTextHasTheUnitsInWhichTheSizeWasGiven) {
  for (const char* text : {"0", "7B", "300MiB", "2GiB", "1536MiB", "200MB", "2GB", "1000001B"}) {
    const uint64_t bytes = BytesOf(text);
    EXPECT_EQ(BytesOf(FormatExact(bytes)), bytes) << text;
  }
  EXPECT_EQ(FormatExact(BytesOf("300MiB")), "300MiB");
  EXPECT_EQ(FormatExact(BytesOf("1.5GiB")), "1536MiB");
  EXPECT_EQ(FormatExact(BytesOf("2GB")), "2GB");
  EXPECT_EQ(FormatExact(1'000'001), "1000001");
}

TEST(SizeTest, APercentageIsOfSomethingElse) {
  const absl::StatusOr<Size> size = ParseSize("20%");
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(size->Of(1000), 200u);
  EXPECT_EQ(ParseSize("512MiB")->Of(1000), 512u << 20);
  EXPECT_EQ(ParseSize("0%")->Of(1000), 0u);
  EXPECT_EQ(ParseSize("100%")->Of(1000), 1000u);
}

TEST(SizeTest, WhatIsNoSizeIsRefusedWithTheTextAndTheUnits) {
  for (const char* text :
       {"", " ", "GiB", "-1", "-1GiB", "1 2", "1Gib", "1XB", "101%", "nan", "inf", "1e30",
        "9999999TiB", "2GiB ", "1GiB2", "0x10", "0x1p4MiB", " 5MiB"}) {
    const absl::StatusOr<Size> size = ParseSize(text);
    ASSERT_TRUE(absl::IsInvalidArgument(size.status())) << "\"" << text << "\"";
    EXPECT_THAT(size.status().ToString(), HasSubstr(std::string("\"") + text + "\""));
    EXPECT_THAT(size.status().ToString(), HasSubstr("GiB"));
  }
}

TEST(SizeTest, FormatIsForPeople) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(14'155'776), "13.5 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{2} << 30), "2.0 GiB");
  EXPECT_EQ(FormatBytes(uint64_t{5000} << 40), "5000.0 TiB");
}

}  // namespace
}  // namespace prefixd::base
